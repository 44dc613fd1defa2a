// Engine: handles messages from processes that this one has never met. They belong to another job
// whose ranks were given this process's address, or have an old address with the same port. They
// are sent under another key, so no receive matches them, and are removed from the network here.
//
// Nothing can arrive unless the transport has moved something, so an idle process does not look.
#pragma once

#include <cstdint>

#include "src/engine/group_table.hpp"
#include "src/engine/membership.hpp"
#include "src/transport/base/clock.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::engine {

class Strangers {
 public:
  /// The minimum time between checks; messages from strangers are held in memory meanwhile.
  static constexpr transport::Duration kPeriod = std::chrono::milliseconds(10);

  Strangers(transport::Transport& transport, const GroupTable& groups, const Membership& membership)
      : transport_(transport), groups_(groups), membership_(membership) {}

  /// Reports that the transport has moved something.
  void moved() { due_ = true; }
  /// The time of the next check; TimePoint::max() if nothing has moved.
  [[nodiscard]] transport::TimePoint next_look() const {
    return due_ ? looked_ + kPeriod : transport::TimePoint::max();
  }
  /// If a check is due, drops such messages and logs that.
  void look(transport::TimePoint now);
  /// The number of messages dropped so far.
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }

 private:
  /// Whether a message with this tag can be from a member of one of this process's groups,
  /// including groups that have ended or are about to be made.
  [[nodiscard]] bool ours(transport::Tag tag) const;

  transport::Transport& transport_;
  const GroupTable& groups_;
  const Membership& membership_;
  std::uint64_t dropped_ = 0;
  bool due_ = false;
  transport::TimePoint looked_{};
};

}  // namespace gtopk::engine
