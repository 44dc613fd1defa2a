// Engine: the messages that one operation has under way, each in a slot that keeps its address.
// Slots outlive the operation: what they cost the next one follows what it uses itself, however
// many the one before it needed.
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

/// A request with what the engine knows of it.
struct MessageSlot {
  transport::Request request;
  Operation* operation = nullptr;
  std::coroutine_handle<> waiter;
  std::uint32_t rank = 0;           ///< the other side, in the group
  bool orphaned = false;            ///< nobody will ask for its result
  bool unexplained = false;         ///< truncated, and its sender has not said yet what it called
  bool deserted = false;            ///< withdrawn, as its sender has left
  MessageSlot* previous = nullptr;  ///< in the list of those in use
  MessageSlot* next = nullptr;
};

class MessageSlots {
 public:
  /// What is kept for the next operation: 16 MiB of a broadcast's pieces, 90 KB of memory.
  static constexpr std::size_t kKept = 128;

  MessageSlots() = default;
  MessageSlots(const MessageSlots&) = delete;
  MessageSlots& operator=(const MessageSlots&) = delete;
  MessageSlots(MessageSlots&&) = delete;
  MessageSlots& operator=(MessageSlots&&) = delete;
  ~MessageSlots() = default;

  /// In use from here on, with the marks of a new message.
  [[nodiscard]] MessageSlot& take(Operation& operation);
  void give_back(MessageSlot& slot);
  /// Slots in use, in the order in which they were taken; `f` may give its own one back.
  template <class F>
  void for_each(F f) const {
    for (MessageSlot* slot = first_; slot != nullptr;) {
      f(*std::exchange(slot, slot->next));
    }
  }
  [[nodiscard]] bool none_in_use() const { return first_ == nullptr; }
  /// How many there are, used or not.
  [[nodiscard]] std::size_t size() const { return slots_.size(); }
  /// Back to kKept; none may be in use.
  void trim();

 private:
  std::deque<MessageSlot> slots_;
  std::vector<MessageSlot*> free_;
  MessageSlot* first_ = nullptr;
  MessageSlot* last_ = nullptr;
};

}  // namespace gtopk::engine
