#include "src/engine/strangers.hpp"

#include <bit>

#include "src/transport/base/log.hpp"

namespace gtopk::engine {

using transport::Tag;
using transport::TagKind;

bool Strangers::ours(Tag tag) const {
  if (transport::kind_of(tag) == TagKind::kControl) {
    // While a group meets, some members may have started without this process knowing them yet.
    return groups_.awaits_members() || membership_.knows(tag);
  }
  const std::uint32_t id = transport::group_of(tag);
  const std::uint32_t source = transport::source_of(tag);
  if (const auto group = groups_.find(id)) {
    return source < group->size();
  }
  // A message for a group that has ended must be withdrawn by its sender: receiving it would report
  // it as delivered.
  return groups_.taken(id) || source < groups_.former_size(id);
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
    // A failed meeting may leave messages behind; their senders are not reported.
    const std::uint32_t id = transport::group_of(tag);
    const bool never_met = transport::kind_of(tag) != TagKind::kControl && !groups_.taken(id) &&
                           groups_.ever_taken(id) && groups_.former_size(id) == 0;
    strange += never_met ? 0 : 1;
    return false;
  });
  if (strange == 0) {
    return;
  }
  // Logged at 1, 2, 4 ... messages.
  const bool tell = std::bit_width(dropped_) != std::bit_width(dropped_ + strange);
  dropped_ += strange;
  if (tell) {
    transport::log().warn(
        "dropped messages from outside this process's groups ({} so far): does another job, or a "
        "leftover process of an earlier one, use this process's address?",
        dropped_);
  }
}

}  // namespace gtopk::engine
