#include "src/collectives/reduce_scatter.hpp"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/reduction.hpp"
#include "src/collectives/tree.hpp"

namespace gtopk {
namespace {

using engine::GroupView;
using engine::Task;

std::uint64_t total(std::span<const Segment> parts) {
  std::uint64_t elements = 0;
  for (const Segment& part : parts) elements += part.size;
  return elements;
}

/// An all-reduce of the parts side by side, of which this rank keeps its own.
Task<void> by_all_reduce(GroupView& group, std::span<const Segment> parts, Segment output,
                         DataType type, ReduceOp op) {
  const std::size_t element = size_of(type);
  const std::span<std::byte> all = group.buffer(total(parts) * element);
  std::size_t at = 0;
  std::size_t own = 0;
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    const std::size_t bytes = parts[rank].size * element;
    if (rank == group.rank()) own = at;
    if (bytes != 0) std::memcpy(all.data() + at, parts[rank].data, bytes);
    at += bytes;
  }
  co_await collectives::reduce_over_ranks(group, all.data(), total(parts), type, op);
  if (output.size != 0) std::memcpy(output.data, all.data() + own, output.size * element);
}

Task<void> reduce_to_parts(GroupView& group, std::span<const Segment> parts, Segment output,
                           DataType type, ReduceOp op) {
  if (group.size() == 1 || total(parts) * size_of(type) <= collectives::kRecursiveDoublingBytes) {
    co_await by_all_reduce(group, parts, output, type, op);
    co_return;
  }
  co_await collectives::agree(group);
  co_await collectives::ring_reduce_scatter(group, parts, output.data, type, op,
                                            collectives::Tree(group.size()).end_step());
  if (op == ReduceOp::kAvg) collectives::divide(output.data, output.size, type, group.size());
}

void check_parts(std::span<const Segment> parts, Segment output, const GroupShape& group) {
  if (parts.size() != group.size) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("reduce_scatter wants one part per rank: {} expected, {} given",
                            group.size, parts.size()));
  }
  if (output.size != parts[group.rank].size) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("reduce_scatter wants an output like part {}, of {} elements; given {}",
                            group.rank, parts[group.rank].size, output.size));
  }
}

}  // namespace

Collective reduce_scatter(std::vector<Segment> parts, Segment output, DataType dtype, ReduceOp op) {
  collectives::check_reduction(dtype, op);
  Collective collective;
  collective.name = "reduce_scatter";
  std::vector<std::uint64_t> sizes;
  sizes.reserve(parts.size());
  for (const Segment& part : parts) sizes.push_back(part.size);
  collective.agreement = Agreement("reduce_scatter")
                             .numbers("d", sizes)
                             .type("dtype", dtype)
                             .word("op", to_string(op));
  const auto held = std::make_shared<const std::vector<Segment>>(std::move(parts));
  collective.check = [held, output](const GroupShape& group) { check_parts(*held, output, group); };
  collective.body = [=](GroupView& group) {
    return reduce_to_parts(group, *held, output, dtype, op);
  };
  return collective;
}

}  // namespace gtopk
