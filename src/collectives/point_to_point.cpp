// Collectives: messages from one rank to another, as values like the others. How they travel is in
// engine/point_to_point.hpp.
#include "src/engine/point_to_point.hpp"

#include <fmt/format.h>

#include "gtopk/collectives.hpp"

namespace gtopk {

Collective send(std::span<const std::byte> data, std::uint32_t to, std::int32_t tag) {
  Collective collective;
  collective.name = fmt::format("send(to {}, tag {})", to, tag);
  collective.ordering = Ordering::kUnnumbered;
  collective.check = [to](const GroupShape& group) { group.check_rank(to, "the receiver"); };
  collective.body = [=](engine::GroupView& group) { return engine::send(group, to, tag, data); };
  return collective;
}

Collective recv(std::span<std::byte> data, std::uint32_t from, std::int32_t tag) {
  Collective collective;
  collective.name = fmt::format("recv(from {}, tag {})", from, tag);
  collective.ordering = Ordering::kUnnumbered;
  collective.check = [from](const GroupShape& group) { group.check_rank(from, "the sender"); };
  collective.body = [=](engine::GroupView& group) { return engine::recv(group, from, tag, data); };
  return collective;
}

}  // namespace gtopk
