// Collectives: a reduction whose result is split among the ranks. The order of summation depends
// only on the sizes of the parts and the element size, and is the same as the all-reduce's.
//
// Up to kRecursiveDoublingBytes over all parts, it is an all-reduce of the parts side by side, of
// which a rank keeps its own part, because this takes no more rounds than agreeing; or each part
// goes straight to its rank (direct.hpp), if that is quicker. For larger sizes, all ranks agree
// first, and then run the first half of the all-reduce's rings (by_hosts.hpp): with one ring a rank
// sends (P-1)/P of the elements, the least possible.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/by_hosts.hpp"
#include "src/collectives/direct.hpp"
#include "src/collectives/memory.hpp"
#include "src/collectives/path_costs.hpp"
#include "src/collectives/reduction.hpp"
#include "src/collectives/tree.hpp"

namespace gtopk {
namespace {

using collectives::DensePaths;
using collectives::PathChoice;
using engine::GroupView;
using engine::Task;

std::uint64_t total(std::span<const Segment> parts) {
  std::uint64_t elements = 0;
  for (const Segment& part : parts) {
    elements += part.size;
  }
  return elements;
}

/// Copies the parts side by side.
std::vector<Segment> copied(GroupView& group, std::span<const Segment> parts, DataType type) {
  const std::size_t element = size_of(type);
  std::byte* at = group.buffer(total(parts) * element).data();
  std::vector<Segment> copies;
  for (const Segment& part : parts) {
    const std::size_t bytes = part.size * element;
    if (bytes != 0) {
      std::memcpy(at, part.data, bytes);
    }
    copies.push_back({at, part.size});
    at += bytes;
  }
  return copies;
}

/// Runs an all-reduce of the parts side by side, and keeps this rank's own part.
Task<void> by_all_reduce(GroupView& group, std::span<const Segment> parts, Segment output,
                         DataType type, ReduceOp op, double factor) {
  const std::vector<Segment> all = copied(group, parts, type);
  co_await collectives::reduce_over_ranks(group, all.front().data, total(parts), type, op, 0,
                                          factor);
  const Segment own = all[group.rank()];
  if (own.size != 0) {
    std::memcpy(output.data, own.data, own.size * size_of(type));
  }
}

Task<void> reduce_to_parts(GroupView& group, std::span<const Segment> parts, Segment output,
                           DataType type, ReduceOp op, double factor) {
  const std::size_t bytes = total(parts) * size_of(type);
  if (group.size() == 1) {
    co_await by_all_reduce(group, parts, output, type, op, factor);
    co_return;
  }
  if (bytes <= collectives::kRecursiveDoublingBytes) {
    PathChoice choice(group);
    Task<bool> choosing = choice.directly(&DensePaths::reduce_scatter_directly, bytes);
    const bool directly = co_await choosing;
    if (directly) {
      co_await collectives::reduce_scatter_directly(group, parts, output.data, type, op, factor);
      if (op == ReduceOp::kAvg) {
        collectives::divide(output.data, output.size, type, group.size());
      }
    } else {
      co_await by_all_reduce(group, parts, output, type, op, factor);
    }
    co_return;
  }
  co_await collectives::agree(group);
  std::vector<Segment> multiplied;
  if (op == ReduceOp::kPremulSum) {
    multiplied = copied(group, parts, type);
    collectives::multiply(multiplied.front().data, total(parts), type, factor);
    parts = multiplied;
  }
  co_await collectives::reduce_scatter_by_hosts(group, parts, output.data, type, op,
                                                collectives::Tree(group.size()).end_step());
  if (op == ReduceOp::kAvg) {
    collectives::divide(output.data, output.size, type, group.size());
  }
}

void check_parts(std::span<const Segment> parts, Segment output, const GroupShape& group) {
  if (parts.size() != group.size) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("reduce_scatter needs one part per rank: {} expected, {} given",
                            group.size, parts.size()));
  }
  if (output.size != parts[group.rank].size) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("reduce_scatter needs an output of part {}'s size, {} elements; given {}",
                    group.rank, parts[group.rank].size, output.size));
  }
}

}  // namespace

Collective reduce_scatter(const ConstBuffers& parts, Buffer output, ReduceOp op, double factor) {
  const DataType dtype = collectives::type_of_all("reduce_scatter", parts, output.dtype);
  collectives::check_reduction(dtype, op, factor);
  Collective collective;
  collective.name = "reduce_scatter";
  std::vector<std::uint64_t> sizes;
  std::vector<Segment> segments;
  for (const ConstBuffer& part : parts) {
    sizes.push_back(part.count);
    segments.push_back({const_cast<void*>(part.data), part.count});  // only read
  }
  collective.agreement = Agreement("reduce_scatter")
                             .numbers("d", sizes)
                             .type("dtype", dtype)
                             .word("op", to_string(op));
  const auto held = std::make_shared<const std::vector<Segment>>(std::move(segments));
  const Segment into{output.data, output.count};
  collective.check = [held, into](const GroupShape& group) { check_parts(*held, into, group); };
  collective.body = [=](GroupView& group) {
    return reduce_to_parts(group, *held, into, dtype, op, factor);
  };
  collective.failed = collectives::forget_paths;
  collectives::take_host_only(collective, collectives::memory_of(parts, output.memory));
  return collective;
}

}  // namespace gtopk
