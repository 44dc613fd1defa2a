// Collectives: messages from one rank to another, as values like the other collectives.
// engine/point_to_point.hpp defines how they are sent.
#include "src/engine/point_to_point.hpp"

#include <fmt/format.h>

#include "gtopk/collectives.hpp"
#include "src/collectives/memory.hpp"

namespace gtopk {
namespace {

engine::Task<void> receive_from_any(engine::GroupView& group, std::int32_t tag, Bytes data,
                                    std::uint32_t* from) {
  engine::Task<std::uint32_t> receiving = engine::recv_any(group, tag, data);
  const std::uint32_t sender = co_await receiving;
  *from = sender;
}

static_assert(kShortMessage == engine::kShortPayloadBytes);

/// Checks the memory of a message between this rank and `other`, or any rank.
void check_memory(Collective& collective, ConstBytes data,
                  std::optional<std::uint32_t> other = std::nullopt) {
  if (data.size() <= kShortMessage) {
    collectives::take_host_only(collective, data.memory(), "copies messages of at most 8160 bytes");
  }
  collectives::take_moved(collective, data.memory(), other);
}

}  // namespace

Collective send(ConstBuffer buffer, std::uint32_t to, std::int32_t tag) {
  const ConstBytes data = buffer.bytes();
  Collective collective;
  collective.name = fmt::format("send(to {}, tag {})", to, tag);
  collective.ordering = Ordering::kUnnumbered;
  collective.bytes = data.size();
  collective.check = [to](const GroupShape& group) { group.check_rank(to, "the receiver"); };
  collective.body = [=](engine::GroupView& group) { return engine::send(group, to, tag, data); };
  check_memory(collective, data, to);
  return collective;
}

Collective recv(Buffer buffer, std::uint32_t from, std::int32_t tag) {
  const Bytes data = buffer.bytes();
  Collective collective;
  collective.name = fmt::format("recv(from {}, tag {})", from, tag);
  collective.ordering = Ordering::kUnnumbered;
  collective.bytes = data.size();
  collective.check = [from](const GroupShape& group) { group.check_rank(from, "the sender"); };
  collective.body = [=](engine::GroupView& group) { return engine::recv(group, from, tag, data); };
  check_memory(collective, data, from);
  return collective;
}

Collective recv_any(Buffer buffer, std::int32_t tag, std::uint32_t& from) {
  const Bytes data = buffer.bytes();
  Collective collective;
  collective.name = fmt::format("recv(from any rank, tag {})", tag);
  collective.ordering = Ordering::kUnnumbered;
  collective.bytes = data.size();
  collective.body = [data, tag, to = &from](engine::GroupView& group) {
    return receive_from_any(group, tag, data, to);
  };
  check_memory(collective, data);
  return collective;
}

}  // namespace gtopk
