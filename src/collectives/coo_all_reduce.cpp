// Collectives: the sum of sparse tensors in coordinate format. Each rank has its own entries, so
// all entries travel round the ring, and every rank adds them up in the same order:
//
//   n[0..P)  <- sum over ranks of (n_r at r, 0 elsewhere)   all agree, and know each rank's number
//   block_r  <- n_r places, then n_r rows                    P-1 steps round the ring
//   for each place, ascending: rows of that place are added in the order of the ranks
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/by_hosts.hpp"
#include "src/collectives/reduction.hpp"

namespace gtopk {
namespace {

using engine::Computation;
using engine::GroupView;
using engine::Task;

constexpr std::size_t kPlaceBytes = sizeof(std::uint64_t);

/// The entries of one rank on the wire: all places, then all rows.
struct Block {
  std::span<std::byte> bytes;
  std::size_t entries;

  [[nodiscard]] std::uint64_t place(std::size_t entry) const {
    std::uint64_t place = 0;
    std::memcpy(&place, bytes.data() + entry * kPlaceBytes, kPlaceBytes);
    return place;
  }
  [[nodiscard]] std::span<std::byte> row(std::size_t entry, std::size_t row_bytes) const {
    return bytes.subspan(entries * kPlaceBytes + entry * row_bytes, row_bytes);
  }
};

/// Adds up the blocks, one per rank.
CooSum added_up(std::span<const Block> blocks, DataType type, std::uint64_t row) {
  /// The next entry of each rank, ordered by place and then by rank.
  using Next = std::pair<std::uint64_t, std::size_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  std::size_t entries = 0;
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) {
    entries += blocks[rank].entries;
    if (blocks[rank].entries > 0) {
      next.emplace(blocks[rank].place(0), rank);
    }
  }
  const std::size_t row_bytes = row * size_of(type);
  std::vector<std::size_t> taken(blocks.size(), 0);
  CooSum sum;
  sum.places.reserve(entries);
  sum.values.reserve(entries * row_bytes);
  while (!next.empty()) {
    const auto [place, rank] = next.top();
    next.pop();
    const Block& block = blocks[rank];
    const std::span<std::byte> values = block.row(taken[rank]++, row_bytes);
    if (sum.places.empty() || sum.places.back() != place) {
      sum.places.push_back(place);
      sum.values.insert(sum.values.end(), values.begin(), values.end());
    } else if (row_bytes > 0) {
      std::byte* const into = sum.values.data() + (sum.places.size() - 1) * row_bytes;
      collectives::reduce(into, into, values.data(), row, type, ReduceOp::kSum);
    }
    if (taken[rank] < block.entries) {
      next.emplace(block.place(taken[rank]), rank);
    }
  }
  return sum;
}

Task<void> sum_over_ranks(GroupView& group, CooEntries mine, DataType type, std::uint64_t row,
                          CooSum* sum) {
  const std::uint32_t ranks = group.size();
  const std::size_t row_bytes = row * size_of(type);
  std::vector<std::uint64_t> counts(ranks, 0);
  counts[group.rank()] = mine.places.size();
  co_await collectives::reduce_over_ranks(group, counts.data(), ranks, DataType::kUint64,
                                          ReduceOp::kSum);
  std::vector<Block> blocks;
  std::vector<Bytes> buffers;
  std::uint64_t elements = 0;
  for (const std::uint64_t count : counts) {
    const std::span<std::byte> buffer = group.buffer(count * (kPlaceBytes + row_bytes));
    buffers.push_back(buffer);
    blocks.push_back({buffer, count});
    elements += count * row;
  }
  const Block& own = blocks[group.rank()];
  if (own.entries > 0) {
    std::memcpy(own.bytes.data(), mine.places.data(), mine.places.size_bytes());
    const std::size_t values = own.entries * row_bytes;
    if (values > 0) {
      std::memcpy(own.bytes.data() + mine.places.size_bytes(), mine.values, values);
    }
  }
  co_await collectives::all_gather_by_hosts(group, buffers, collectives::reduction_steps(ranks));
  Computation adding =
      group.compute(elements, [&blocks, type, row, sum] { *sum = added_up(blocks, type, row); });
  co_await adding;
}

/// Checks a shape. Places are 64-bit numbers, and torch uses 63 bits of them.
void check_shape(const CooShape& shape) {
  std::uint64_t places = 1;
  for (const std::uint64_t size : std::span(shape.sizes).first(shape.sparse_dimensions)) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    if (size != 0 && places > kMost / size) {
      throw Error(
          ErrorKind::kUnsupported,
          "all_reduce takes no sparse tensor whose sparse dimensions have 2^63 places or more");
    }
    places *= size;
  }
}

}  // namespace

std::uint64_t CooShape::row() const {
  std::uint64_t row = 1;
  for (const std::uint64_t size : std::span(sizes).subspan(sparse_dimensions)) {
    row *= size;
  }
  return row;
}

Collective coo_all_reduce(CooEntries entries, const CooShape& shape, CooSum& sum) {
  collectives::check_reduction(shape.dtype, ReduceOp::kSum);
  if (shape.sparse_dimensions > shape.sizes.size()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("a sparse tensor of {} dimensions cannot have {} sparse dimensions",
                            shape.sizes.size(), shape.sparse_dimensions));
  }
  check_shape(shape);
  Collective collective;
  collective.name = "all_reduce(sparse)";
  collective.agreement = Agreement("all_reduce(sparse)")
                             .number("dimensions", shape.sizes.size())
                             .numbers("sizes", shape.sizes)
                             .number("sparse_dim", shape.sparse_dimensions)
                             .type("dtype", shape.dtype);
  const std::uint64_t row = shape.row();
  collective.bytes = entries.places.size() * (kPlaceBytes + row * size_of(shape.dtype));
  collective.body = [=, type = shape.dtype, into = &sum](GroupView& group) {
    return sum_over_ranks(group, entries, type, row, into);
  };
  return collective;
}

}  // namespace gtopk
