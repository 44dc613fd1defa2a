#include "src/engine/strangers.hpp"

#include <bit>

#include "src/transport/base/log.hpp"

namespace gtopk::engine {

using transport::Tag;
using transport::TagKind;

bool Strangers::ours(Tag tag) const {
  if (transport::kind_of(tag) == TagKind::kControl) {
    // While a group meets, its members may have begun, and this process may not know them yet.
    return groups_.awaits_members() || membership_.knows(tag);
  }
  const std::uint32_t id = transport::group_of(tag);
  const auto group = groups_.find(id);
  return group == nullptr ? groups_.taken(id) : transport::source_of(tag) < group->size();
}

void Strangers::look(transport::TimePoint now) {
  if (now < next_look()) {
    return;
  }
  due_ = false;
  looked_ = now;
  std::uint64_t strange = 0;
  transport_.sift([&](Tag tag) {
    if (ours(tag)) {
      return true;
    }
    // What a group leaves behind that has ended is nobody's fault.
    const std::uint32_t id = transport::group_of(tag);
    const bool remains = transport::kind_of(tag) != TagKind::kControl && !groups_.taken(id) &&
                         groups_.ever_taken(id);
    strange += remains ? 0 : 1;
    return false;
  });
  if (strange == 0) {
    return;
  }
  // At 1, 2, 4 ... messages.
  const bool tell = std::bit_width(dropped_) != std::bit_width(dropped_ + strange);
  dropped_ += strange;
  if (tell) {
    transport::log().warn(
        "messages of nobody in this process's groups arrive at its address and are dropped, {} so "
        "far: is it used by another job, or by what is left of an earlier one?",
        dropped_);
  }
}

}  // namespace gtopk::engine
