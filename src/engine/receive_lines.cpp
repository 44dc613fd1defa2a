#include "src/engine/receive_lines.hpp"

#include <utility>

namespace gtopk::engine {

void ReceiveLines::enter(Place& place, std::uint32_t source, std::int32_t tag) {
  place.key = key_of(source, tag);
  auto found = lines_.find(place.key);
  if (found == lines_.end()) {
    if (spare_.empty()) {
      found = lines_.emplace(place.key, Line{}).first;
    } else {
      Lines::node_type node = std::move(spare_.back());
      spare_.pop_back();
      node.key() = place.key;
      found = lines_.insert(std::move(node)).position;
    }
  }
  place.line = &found->second;
  place.previous = std::exchange(place.line->last, &place);
  (place.previous == nullptr ? place.line->first : place.previous->next) = &place;
}

Operation* ReceiveLines::leave(Place& place) {
  Line& line = *place.line;
  (place.previous == nullptr ? line.first : place.previous->next) = place.next;
  (place.next == nullptr ? line.last : place.next->previous) = place.previous;
  if (line.first != nullptr) {
    return place.previous == nullptr ? line.first->operation : nullptr;
  }
  Lines::node_type node = lines_.extract(place.key);
  if (spare_.size() < kSpare) {
    spare_.push_back(std::move(node));
  }
  return nullptr;
}

}  // namespace gtopk::engine
