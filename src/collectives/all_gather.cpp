// Collectives: every rank's bytes to all: the ranks agree, then P-1 steps round the ring.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/ring.hpp"
#include "src/collectives/tree.hpp"

namespace gtopk {

using engine::GroupView;
using engine::Task;

namespace {

Task<void> gather(GroupView& group, std::span<const std::span<std::byte>> rooms) {
  co_await collectives::agree(group);
  co_await collectives::ring_all_gather(group, rooms, collectives::Tree(group.size()).end_step());
}

void check_rooms(std::span<const std::span<std::byte>> rooms, const GroupShape& group) {
  if (rooms.size() != group.size) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("all_gather needs one buffer per rank: {} expected, {} given",
                            group.size, rooms.size()));
  }
}

}  // namespace

Collective all_gather(std::vector<std::span<std::byte>> rooms, DataType dtype) {
  Collective collective;
  collective.name = "all_gather";
  std::vector<std::uint64_t> sizes;
  sizes.reserve(rooms.size());
  for (const auto& room : rooms) {
    sizes.push_back(room.size());
  }
  collective.agreement = Agreement("all_gather").numbers("bytes", sizes).type("dtype", dtype);
  const auto held = std::make_shared<const std::vector<std::span<std::byte>>>(std::move(rooms));
  collective.check = [held](const GroupShape& group) { check_rooms(*held, group); };
  collective.body = [held](GroupView& group) { return gather(group, *held); };
  return collective;
}

}  // namespace gtopk
