// Engine: the queue of receives of one sender and tag. Only the front receive looks for a header,
// because a receive that skips a withdrawn message looks for another one and must not fall behind
// later calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace gtopk::engine {

class Operation;

class ReceiveLines {
 public:
  struct Line;
  /// A receive in the queue. It must not move while it is queued.
  struct QueueTicket {
    Operation* operation = nullptr;
    Line* line = nullptr;
    std::uint64_t key = 0;
    QueueTicket* previous = nullptr;
    QueueTicket* next = nullptr;
  };
  struct Line {
    QueueTicket* first = nullptr;
    QueueTicket* last = nullptr;
  };

  void enter(QueueTicket& ticket, std::uint32_t source, std::int32_t tag);
  /// Removes a receive; returns the new front if it has changed.
  Operation* leave(QueueTicket& ticket);
  [[nodiscard]] static bool is_first(const QueueTicket& ticket) {
    return ticket.line->first == &ticket;
  }
  /// Whether a receive of that sender and tag is queued.
  [[nodiscard]] bool any(std::uint32_t source, std::int32_t tag) const {
    return lines_.contains(key_of(source, tag));
  }
  [[nodiscard]] std::size_t size() const { return lines_.size(); }

 private:
  static std::uint64_t key_of(std::uint32_t source, std::int32_t tag) {
    return (static_cast<std::uint64_t>(source) << 32U) | static_cast<std::uint32_t>(tag);
  }

  /// The number of nodes kept for reuse, so that the steady state does not allocate.
  static constexpr std::size_t kSpare = 64;

  using Lines = std::unordered_map<std::uint64_t, Line>;
  Lines lines_;  ///< no queue is empty
  std::vector<Lines::node_type> spare_;
};

}  // namespace gtopk::engine
