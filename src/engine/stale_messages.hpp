// Engine: messages of operations and groups that ended early. They may still arrive, and are taken
// out of the network when they do, so that they can neither pile up, nor match what comes later,
// nor keep a sender that waits for somebody to take them.
//
// Nothing can arrive unless the transport has moved something: an idle process sweeps nothing.
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
  /// How long they are looked for.
  static constexpr transport::Duration kBound = std::chrono::seconds(60);
  /// Time from one sweep to the next, at least.
  static constexpr transport::Duration kPeriod = std::chrono::milliseconds(1);

  explicit StaleMessages(transport::Transport& transport) : transport_(transport) {}

  // What is looked for from `now` on. Idempotent.
  void add_group(std::uint32_t group, transport::TimePoint now);
  void add_collective(std::uint32_t group, std::uint64_t sequence, transport::TimePoint now);
  /// The payload of one point-to-point message.
  void add_payload(std::uint32_t group, transport::Tag tag, transport::TimePoint now);

  [[nodiscard]] bool has_collective(std::uint32_t group, std::uint64_t sequence) const;
  [[nodiscard]] bool has_payload(std::uint32_t group, transport::Tag tag) const;
  /// Takes out what has arrived of a group whose end leaves nothing to look for.
  void discard_group(std::uint32_t group);
  /// The id is a new group's: what is left of the former is not told apart from its messages.
  void forget_group(std::uint32_t group);

  /// The transport has moved something.
  void moved() { due_ = !entries_.empty(); }
  /// Not before kPeriod has passed since the last one; TimePoint::max() when nothing has moved.
  [[nodiscard]] transport::TimePoint next_sweep() const {
    return due_ ? swept_ + kPeriod : transport::TimePoint::max();
  }
  /// Sweeps, if that is due. `arrived`: how many collectives a group has seen called.
  void sweep(transport::TimePoint now, const std::function<std::uint64_t(std::uint32_t)>& arrived);

 private:
  enum class Kind : std::uint8_t { kGroup, kCollective, kPayload };
  struct Entry {
    Kind kind;
    std::uint32_t group;
    std::uint64_t number;  ///< sequence or tag
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
