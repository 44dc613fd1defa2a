#include "src/collectives/by_hosts.hpp"

#include <memory>
#include <optional>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/host_rings.hpp"
#include "src/collectives/ring.hpp"

namespace gtopk::collectives {
namespace {

using engine::GroupView;
using engine::Task;

/// The rings of a group; there is one object per group.
struct KnownRings {
  std::optional<HostRings> rings;
};

const HostRings& rings_of(GroupView& group) {
  auto& known = group.per_group_state().of<KnownRings>();
  if (!known.rings) {
    known.rings.emplace(group.hosts(), group.rank());
  }
  return *known.rings;
}

/// Makes a list of `count` items, which live as long as the operation.
template <class Item, class Make>
std::span<const Item> list(GroupView& group, std::size_t count, Make make) {
  auto* const items = reinterpret_cast<Item*>(group.buffer(count * sizeof(Item)).data());
  for (std::size_t i = 0; i < count; ++i) {
    std::construct_at(items + i, make(static_cast<std::uint32_t>(i)));
  }
  return {items, count};
}

/// The items of each rank, in the order of the ring through all ranks.
template <class Item, class Of>
std::span<const Item> for_all(GroupView& group, const HostRings& rings, Of of) {
  return list<Item>(group, rings.all().size(),
                    [&](std::uint32_t place) { return of(rings.all().ranks[place]); });
}

/// Returns, for each place on a host, the items of the ranks with that place.
template <class Item, class Of>
std::span<const Item> for_each_place(GroupView& group, const HostRings& rings, Of of) {
  const std::uint32_t hosts = rings.hosts();
  return list<Item>(group, hosts * rings.each(),
                    [&](std::uint32_t i) { return of(rings.rank_at(i % hosts, i / hosts)); });
}

/// The items of the ranks with this rank's place, host after host.
template <class Item, class Of>
std::span<const Item> for_this_place(GroupView& group, const HostRings& rings, Of of) {
  return list<Item>(group, rings.hosts(),
                    [&](std::uint32_t host) { return of(rings.across().ranks[host]); });
}

RingParts cut(std::span<const Segment> segments, Ring ring, DataType type) {
  const std::size_t element = size_of(type);
  return {segments, ring.size(), element, RingParts::pieces_for(segments, element, kPieceBytes)};
}

/// One part, cut like the parts of `others`.
RingParts cut_alike(std::span<const Segment> part, const RingParts& others, DataType type) {
  return {part, 1, size_of(type), others.pieces_of_segment()};
}

}  // namespace

Task<void> all_reduce_by_hosts(GroupView& group, void* data, std::uint64_t d, DataType type,
                               ReduceOp op, std::uint32_t first_step) {
  const HostRings& rings = rings_of(group);
  const auto chunk = [data, d, ranks = group.size(), element = size_of(type)](std::uint32_t rank) {
    const std::uint64_t begin = chunk_begin(d, ranks, rank);
    return Segment{static_cast<std::byte*>(data) + begin * element,
                   chunk_begin(d, ranks, rank + 1) - begin};
  };
  if (!rings.two_levels()) {
    const std::span<const Segment> chunks = for_all<Segment>(group, rings, chunk);
    co_await ring_all_reduce(group, rings.all(), cut(chunks, rings.all(), type), type, op,
                             first_step);
    co_return;
  }
  const Ring within = rings.within();
  const Ring across = rings.across();
  const std::span<const Segment> of_places = for_each_place<Segment>(group, rings, chunk);
  const std::span<const Segment> of_hosts = for_this_place<Segment>(group, rings, chunk);
  const std::uint32_t between = first_step + within.size() - 1;
  const std::uint32_t back = between + 2 * (across.size() - 1);
  co_await ring_reduce(group, within, cut(of_places, within, type), type, op, first_step);
  co_await ring_all_reduce(group, across, cut(of_hosts, across, type), type, op, between);
  const std::span<const Bytes> buffers =
      for_each_place<Bytes>(group, rings, [&](std::uint32_t rank) -> Bytes {
        const Segment at = chunk(rank);
        return std::span(static_cast<std::byte*>(at.data), at.size * size_of(type));
      });
  co_await ring_all_gather(group, within, buffers, back);
}

Task<void> reduce_scatter_by_hosts(GroupView& group, std::span<const Segment> parts, void* output,
                                   DataType type, ReduceOp op, std::uint32_t first_step) {
  const HostRings& rings = rings_of(group);
  const auto part = [parts](std::uint32_t rank) { return parts[rank]; };
  const std::span<const Segment> result = list<Segment>(
      group, 1, [&](std::uint32_t /*only*/) { return Segment{output, parts[group.rank()].size}; });
  if (!rings.two_levels()) {
    const RingParts all = cut(for_all<Segment>(group, rings, part), rings.all(), type);
    co_await ring_reduce_scatter(group, rings.all(), all, cut_alike(result, all, type), type, op,
                                 first_step);
    co_return;
  }
  const Ring within = rings.within();
  const Ring across = rings.across();
  std::size_t elements = 0;
  for (const std::uint32_t rank : across.ranks) {
    elements += parts[rank].size;
  }
  std::byte* at = group.buffer(elements * size_of(type)).data();
  const std::span<const Segment> host_sums =
      for_this_place<Segment>(group, rings, [&](std::uint32_t rank) {
        const Segment sum{at, parts[rank].size};
        at += sum.size * size_of(type);
        return sum;
      });
  const RingParts of_places = cut(for_each_place<Segment>(group, rings, part), within, type);
  co_await ring_reduce_scatter(group, within, of_places, cut_alike(host_sums, of_places, type),
                               type, op, first_step);
  const RingParts of_hosts = cut(host_sums, across, type);
  co_await ring_reduce_scatter(group, across, of_hosts, cut_alike(result, of_hosts, type), type, op,
                               first_step + within.size() - 1);
}

Task<void> all_gather_by_hosts(GroupView& group, std::span<const Bytes> buffers,
                               std::uint32_t first_step) {
  const HostRings& rings = rings_of(group);
  const auto buffer_of = [buffers](std::uint32_t rank) { return buffers[rank]; };
  if (!rings.two_levels()) {
    co_await ring_all_gather(group, rings.all(), for_all<Bytes>(group, rings, buffer_of),
                             first_step);
    co_return;
  }
  const std::span<const Bytes> of_hosts = for_this_place<Bytes>(group, rings, buffer_of);
  const std::span<const Bytes> of_places = for_each_place<Bytes>(group, rings, buffer_of);
  co_await ring_all_gather(group, rings.across(), of_hosts, first_step);
  co_await ring_all_gather(group, rings.within(), of_places, first_step + rings.hosts() - 1);
}

}  // namespace gtopk::collectives
