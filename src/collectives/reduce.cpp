// Collectives: a reduction whose result goes to one rank. The result has the same bits as the
// all-reduce's.
//
// Up to kRecursiveDoublingBytes, it is the all-reduce, whose result the other ranks drop. A tree
// towards the root could be walked only after all ranks have agreed, which takes as many rounds
// again. For larger sizes, ranks agree, reduce-scatter (by_hosts.hpp), then gather the chunks
// (Rabenseifner 2004): the root receives less than 2 d elements and every other rank d, while a
// tree's inner nodes would receive log P times d.
#include <cstring>
#include <vector>

#include "gtopk/collectives.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/by_hosts.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/memory.hpp"
#include "src/collectives/path_costs.hpp"
#include "src/collectives/reduction.hpp"
#include "src/collectives/tree.hpp"

namespace gtopk {
namespace {

using collectives::chunk_begin;
using engine::GroupView;
using engine::Message;
using engine::Task;

Task<void> by_all_reduce(GroupView& group, std::uint32_t root, void* data, std::uint64_t d,
                         DataType type, ReduceOp op, double factor) {
  void* into = data;
  if (group.rank() != root) {  // this rank's values must stay unchanged
    const std::size_t bytes = d * size_of(type);
    into = group.buffer(bytes).data();
    if (bytes != 0) {
      std::memcpy(into, data, bytes);
    }
  }
  co_await collectives::reduce_by_the_quicker_path(group, into, d, type, op, factor);
}

Task<void> by_ring(GroupView& group, std::uint32_t root, void* data, std::uint64_t d, DataType type,
                   ReduceOp op, double factor) {
  co_await collectives::agree(group);
  const std::uint32_t ranks = group.size();
  const std::size_t element = size_of(type);
  auto* const bytes = static_cast<std::byte*>(data);
  std::vector<Segment> chunks;
  for (std::uint32_t chunk = 0; chunk < ranks; ++chunk) {
    const std::uint64_t begin = chunk_begin(d, ranks, chunk);
    chunks.push_back({bytes + begin * element, chunk_begin(d, ranks, chunk + 1) - begin});
  }
  const auto place = [&](std::uint32_t chunk) {
    return std::span(static_cast<std::byte*>(chunks[chunk].data), chunks[chunk].size * element);
  };
  std::vector<Segment> values = chunks;
  if (op == ReduceOp::kPremulSum) {  // copied because the data must stay unchanged
    const std::span<std::byte> multiplied = group.buffer(d * element);
    std::memcpy(multiplied.data(), bytes, multiplied.size());
    collectives::multiply(multiplied.data(), d, type, factor);
    for (std::uint32_t chunk = 0; chunk < ranks; ++chunk) {
      values[chunk].data = multiplied.data() + chunk_begin(d, ranks, chunk) * element;
    }
  }
  const std::uint32_t rank = group.rank();
  const std::uint32_t first_step = collectives::Tree(ranks).end_step();
  const std::span<std::byte> sum = rank == root ? place(rank) : group.buffer(place(rank).size());
  co_await collectives::reduce_scatter_by_hosts(group, values, sum.data(), type, op, first_step);
  if (op == ReduceOp::kAvg) {
    collectives::divide(sum.data(), chunks[rank].size, type, ranks);
  }

  const std::uint32_t step = first_step + ranks - 1;
  if (rank != root) {
    Message outgoing = group.send(root, step, sum);
    co_await outgoing;
    co_return;
  }
  std::vector<Message> incoming;
  for (std::uint32_t from = 0; from < ranks; ++from) {
    if (from != root) {
      incoming.push_back(group.recv(from, step, place(from)));
    }
  }
  for (std::uint32_t from = 0; from < ranks; ++from) {
    if (from == root) {
      continue;
    }
    Message& message = incoming[from < root ? from : from - 1];
    const std::size_t received = co_await message;
    collectives::require_length(received, place(from).size(), group, from);
  }
}

Task<void> reduce_to(GroupView& group, std::uint32_t root, void* data, std::uint64_t d,
                     DataType type, ReduceOp op, double factor) {
  const bool small = d * size_of(type) <= collectives::kRecursiveDoublingBytes;
  if (small || group.size() == 1) {
    return by_all_reduce(group, root, data, d, type, op, factor);
  }
  return by_ring(group, root, data, d, type, op, factor);
}

}  // namespace

Collective reduce(Buffer data, std::uint32_t root, ReduceOp op, double factor) {
  collectives::check_reduction(data.dtype, op, factor);
  Collective collective;
  collective.name = "reduce";
  collective.agreement = Agreement("reduce")
                             .number("d", data.count)
                             .type("dtype", data.dtype)
                             .word("op", to_string(op))
                             .number("root", root);
  collective.check = [root](const GroupShape& group) { group.check_rank(root, "the root"); };
  collective.body = [=](GroupView& group) {
    return reduce_to(group, root, data.data, data.count, data.dtype, op, factor);
  };
  collective.failed = collectives::forget_paths;
  collectives::take_host_only(collective, data.memory);
  return collective;
}

}  // namespace gtopk
