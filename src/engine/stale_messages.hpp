// Engine: messages of operations and groups that ended early. If they still arrive, they are
// received and dropped, so that they neither accumulate, nor match a later receive, nor block a
// sender that waits until they are received.
//
// Nothing can arrive unless the transport has moved something, so an idle process does not sweep.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "src/transport/base/clock.hpp"
#include "src/transport/base/tag.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::engine {

class StaleMessages {
 public:
  /// How long to look for stale messages.
  static constexpr transport::Duration kBound = std::chrono::seconds(60);
  /// The minimum time between sweeps.
  static constexpr transport::Duration kPeriod = std::chrono::milliseconds(1);

  explicit StaleMessages(transport::Transport& transport) : transport_(transport) {}

  // The following add messages to look for from `now` on. They are idempotent.
  void add_group(std::uint32_t group, transport::TimePoint now);
  void add_collective(std::uint32_t group, std::uint64_t sequence, transport::TimePoint now);
  /// Adds the payload of one point-to-point message.
  void add_payload(std::uint32_t group, transport::Tag tag, transport::TimePoint now);

  [[nodiscard]] bool has_collective(std::uint32_t group, std::uint64_t sequence) const;
  [[nodiscard]] bool has_payload(std::uint32_t group, transport::Tag tag) const;
  /// Drops what has arrived for a group that ended in order, without looking again later.
  void discard_group(std::uint32_t group);
  /// Stops looking when the id belongs to a new group, because old messages are indistinguishable
  /// from the new group's.
  void forget_group(std::uint32_t group);

  /// Reports that the transport has moved something.
  void moved() { due_ = !entries_.empty(); }
  /// The time of the next sweep, at least kPeriod after the last one; TimePoint::max() if nothing
  /// has moved.
  [[nodiscard]] transport::TimePoint next_sweep() const {
    return due_ ? swept_ + kPeriod : transport::TimePoint::max();
  }
  /// Sweeps if a sweep is due. `arrived` returns how many collectives of a group were called so
  /// far.
  void sweep(transport::TimePoint now, const std::function<std::uint64_t(std::uint32_t)>& arrived);

 private:
  enum class Kind : std::uint8_t { kGroup, kCollective, kPayload };
  struct Entry {
    Kind kind;
    std::uint32_t group;
    std::uint64_t number;  ///< sequence number or tag
    transport::TimePoint until;
  };

  void add(Entry entry);
  [[nodiscard]] bool has(Kind kind, std::uint32_t group, std::uint64_t number) const;

  transport::Transport& transport_;
  std::vector<Entry> entries_;
  bool due_ = false;
  transport::TimePoint swept_{};
};

}  // namespace gtopk::engine
