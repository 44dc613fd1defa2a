// Engine: the messages that one operation has in flight, each in a slot with a stable address.
// Slots outlive the operation and are reused; their cost depends only on how many the current
// operation uses, not on how many an earlier one needed.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "src/transport/base/request.hpp"

namespace gtopk::engine {

class Operation;

/// A request, with the engine's data about it.
struct MessageSlot {
  transport::Request request;
  Operation* operation = nullptr;
  std::coroutine_handle<> waiter;
  std::uint32_t rank = 0;    ///< the peer's rank in the group
  bool orphaned = false;     ///< its result will not be awaited
  bool unexplained = false;  ///< truncated, and its sender has not yet said what it called
  bool deserted = false;     ///< ended or in doubt because the peer has left
  /// Whether a header is being received. Its awaiter takes the length of a truncated message, even
  /// if the operation has failed.
  bool is_header = false;
  /// Whether it was sent, or ended with its endpoint, and it is not yet known whether the peer is
  /// alive.
  bool in_doubt = false;
  MessageSlot* previous = nullptr;  ///< in the list of slots in use
  MessageSlot* next = nullptr;
};

class MessageSlots {
 public:
  /// The number of slots kept for the next operation. They suffice for 16 MiB of a broadcast's
  /// pieces and take 90 KB of memory.
  static constexpr std::size_t kKept = 128;

  MessageSlots() = default;
  MessageSlots(const MessageSlots&) = delete;
  MessageSlots& operator=(const MessageSlots&) = delete;
  MessageSlots(MessageSlots&&) = delete;
  MessageSlots& operator=(MessageSlots&&) = delete;
  ~MessageSlots() = default;

  /// Takes a slot into use, reset for a new message.
  [[nodiscard]] MessageSlot& take(Operation& operation);
  void give_back(MessageSlot& slot);
  /// Visits the slots in use, in the order in which they were taken; `f` may return its slot to
  /// this object.
  template <class F>
  void for_each(F f) const {
    for (MessageSlot* slot = first_; slot != nullptr;) {
      f(*std::exchange(slot, slot->next));
    }
  }
  [[nodiscard]] bool none_in_use() const { return first_ == nullptr; }
  /// The number of all slots, in use or not.
  [[nodiscard]] std::size_t size() const { return slots_.size(); }
  /// Shrinks to kKept slots; none may be in use.
  void trim();

 private:
  std::deque<MessageSlot> slots_;
  std::vector<MessageSlot*> free_;
  MessageSlot* first_ = nullptr;
  MessageSlot* last_ = nullptr;
};

}  // namespace gtopk::engine
