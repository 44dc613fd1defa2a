// Collectives: messages from one rank to another, as values like the other collectives. How they
// travel is in engine/point_to_point.hpp.
#include "src/engine/point_to_point.hpp"

#include <fmt/format.h>

#include "gtopk/collectives.hpp"

namespace gtopk {
namespace {

engine::Task<void> receive_from_any(engine::GroupView& group, std::int32_t tag,
                                    std::span<std::byte> data, std::uint32_t* from) {
  engine::Task<std::uint32_t> receiving = engine::recv_any(group, tag, data);
  const std::uint32_t sender = co_await receiving;
  *from = sender;
}

}  // namespace

Collective send(std::span<const std::byte> data, std::uint32_t to, std::int32_t tag) {
  Collective collective;
  collective.name = fmt::format("send(to {}, tag {})", to, tag);
  collective.ordering = Ordering::kUnnumbered;
  collective.bytes = data.size();
  collective.check = [to](const GroupShape& group) { group.check_rank(to, "the receiver"); };
  collective.body = [=](engine::GroupView& group) { return engine::send(group, to, tag, data); };
  return collective;
}

Collective recv(std::span<std::byte> data, std::uint32_t from, std::int32_t tag) {
  Collective collective;
  collective.name = fmt::format("recv(from {}, tag {})", from, tag);
  collective.ordering = Ordering::kUnnumbered;
  collective.bytes = data.size();
  collective.check = [from](const GroupShape& group) { group.check_rank(from, "the sender"); };
  collective.body = [=](engine::GroupView& group) { return engine::recv(group, from, tag, data); };
  return collective;
}

Collective recv_any(std::span<std::byte> data, std::int32_t tag, std::uint32_t& from) {
  Collective collective;
  collective.name = fmt::format("recv(from any rank, tag {})", tag);
  collective.ordering = Ordering::kUnnumbered;
  collective.bytes = data.size();
  collective.body = [data, tag, to = &from](engine::GroupView& group) {
    return receive_from_any(group, tag, data, to);
  };
  return collective;
}

}  // namespace gtopk
