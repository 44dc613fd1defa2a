#include "src/engine/receive_lines.hpp"

#include <utility>

namespace gtopk::engine {

void ReceiveLines::enter(QueueTicket& ticket, std::uint32_t source, std::int32_t tag) {
  ticket.key = key_of(source, tag);
  auto found = lines_.find(ticket.key);
  if (found == lines_.end()) {
    if (spare_.empty()) {
      found = lines_.emplace(ticket.key, Line{}).first;
    } else {
      Lines::node_type node = std::move(spare_.back());
      spare_.pop_back();
      node.key() = ticket.key;
      found = lines_.insert(std::move(node)).position;
    }
  }
  ticket.line = &found->second;
  ticket.previous = std::exchange(ticket.line->last, &ticket);
  (ticket.previous == nullptr ? ticket.line->first : ticket.previous->next) = &ticket;
}

Operation* ReceiveLines::leave(QueueTicket& ticket) {
  Line& line = *ticket.line;
  (ticket.previous == nullptr ? line.first : ticket.previous->next) = ticket.next;
  (ticket.next == nullptr ? line.last : ticket.next->previous) = ticket.previous;
  if (line.first != nullptr) {
    return ticket.previous == nullptr ? line.first->operation : nullptr;
  }
  Lines::node_type node = lines_.extract(ticket.key);
  if (spare_.size() < kSpare) {
    spare_.push_back(std::move(node));
  }
  return nullptr;
}

}  // namespace gtopk::engine
