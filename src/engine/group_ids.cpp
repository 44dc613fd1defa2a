#include "src/engine/group_ids.hpp"

namespace gtopk::engine {

std::optional<std::uint32_t> GroupIds::take() {
  for (std::uint32_t tried = 0; tried < transport::kMaxGroups; ++tried) {
    const std::uint32_t id = next_;
    next_ = (next_ + 1) % transport::kMaxGroups;
    if (taken_.test(id)) {
      continue;
    }
    taken_.set(id);
    used_.set(id);
    return id;
  }
  return std::nullopt;
}

}  // namespace gtopk::engine
