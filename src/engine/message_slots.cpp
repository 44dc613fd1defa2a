#include "src/engine/message_slots.hpp"

namespace gtopk::engine {

MessageSlot& MessageSlots::take(Operation& operation) {
  if (free_.empty()) {
    free_.push_back(&slots_.emplace_back());
  }
  MessageSlot& slot = *free_.back();
  free_.pop_back();
  slot.operation = &operation;
  slot.waiter = {};
  slot.orphaned = false;
  slot.unexplained = false;
  slot.deserted = false;
  slot.is_header = false;
  slot.in_doubt = false;
  slot.previous = std::exchange(last_, &slot);
  slot.next = nullptr;
  (slot.previous == nullptr ? first_ : slot.previous->next) = &slot;
  return slot;
}

void MessageSlots::give_back(MessageSlot& slot) {
  (slot.previous == nullptr ? first_ : slot.previous->next) = slot.next;
  (slot.next == nullptr ? last_ : slot.next->previous) = slot.previous;
  slot.operation = nullptr;
  free_.push_back(&slot);
}

void MessageSlots::trim() {
  if (slots_.size() <= kKept) {
    return;
  }
  while (slots_.size() > kKept) {
    slots_.pop_back();
  }
  free_.clear();
  for (MessageSlot& slot : slots_) {
    free_.push_back(&slot);
  }
}

}  // namespace gtopk::engine
