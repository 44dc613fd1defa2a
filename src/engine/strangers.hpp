// Engine: messages of nobody that this process has met: of another job, whose ranks were given this
// process's address, or have kept that of one that had the port before. They are sent under another
// key, so that no receive takes them, and are taken out of the network here.
//
// Nothing can arrive unless the transport has moved something: an idle process looks for nothing.
#pragma once

#include <cstdint>

#include "src/engine/group_table.hpp"
#include "src/engine/membership.hpp"
#include "src/transport/base/clock.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::engine {

class Strangers {
 public:
  /// Time from one look to the next, at least: what a stranger can send meanwhile lies in memory.
  static constexpr transport::Duration kPeriod = std::chrono::milliseconds(10);

  Strangers(transport::Transport& transport, const GroupTable& groups, const Membership& membership)
      : transport_(transport), groups_(groups), membership_(membership) {}

  /// The transport has moved something.
  void moved() { due_ = true; }
  /// TimePoint::max() when nothing has moved.
  [[nodiscard]] transport::TimePoint next_look() const {
    return due_ ? looked_ + kPeriod : transport::TimePoint::max();
  }
  /// Drops what is there, if that is due, and says so in the log.
  void look(transport::TimePoint now);
  /// Messages that were dropped so far.
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }

 private:
  /// Whether a member of a group of this process can have sent it, or of one that has ended or is
  /// about to be.
  [[nodiscard]] bool ours(transport::Tag tag) const;

  transport::Transport& transport_;
  const GroupTable& groups_;
  const Membership& membership_;
  std::uint64_t dropped_ = 0;
  bool due_ = false;
  transport::TimePoint looked_{};
};

}  // namespace gtopk::engine
