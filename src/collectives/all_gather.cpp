// Collectives: every rank's bytes to all: the ranks agree, then the rings of their hosts
// (by_hosts.hpp).
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/by_hosts.hpp"
#include "src/collectives/memory.hpp"
#include "src/collectives/tree.hpp"

namespace gtopk {

using engine::GroupView;
using engine::Task;

namespace {

Task<void> gather(GroupView& group, std::span<const Bytes> rooms) {
  co_await collectives::agree(group);
  co_await collectives::all_gather_by_hosts(group, rooms,
                                            collectives::Tree(group.size()).end_step());
}

void check_rooms(std::span<const Bytes> rooms, const GroupShape& group) {
  if (rooms.size() != group.size) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("all_gather needs one buffer per rank: {} expected, {} given",
                            group.size, rooms.size()));
  }
}

}  // namespace

Collective all_gather(const Buffers& rooms) {
  const DataType dtype = collectives::type_of_all("all_gather", rooms);
  Collective collective;
  collective.name = "all_gather";
  std::vector<std::uint64_t> sizes;
  sizes.reserve(rooms.size());
  std::vector<Bytes> bytes = collectives::bytes_of_all(rooms);
  for (const Bytes& room : bytes) {
    sizes.push_back(room.size());
  }
  collective.agreement = Agreement("all_gather").numbers("bytes", sizes).type("dtype", dtype);
  const auto held = std::make_shared<const std::vector<Bytes>>(std::move(bytes));
  collective.check = [held](const GroupShape& group) { check_rooms(*held, group); };
  collective.body = [held](GroupView& group) { return gather(group, *held); };
  collectives::take_moved(collective, collectives::memory_of(rooms));
  return collective;
}

}  // namespace gtopk
