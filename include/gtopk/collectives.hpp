// Public surface: the collectives that are there, each as a value for Communicator::run. They throw
// Error{kInvalidArgument} for what no rank may call; memory must stay valid until `done`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gtopk/collective.hpp"
#include "gtopk/plan.hpp"
#include "gtopk/types.hpp"

namespace gtopk {

/// data: d elements, in place. factor: of kPremulSum, this rank's own; it is rounded to the
/// accumulation type, and each product once to dtype.
[[nodiscard]] Collective all_reduce(void* data, std::uint64_t d, DataType dtype,
                                    ReduceOp op = ReduceOp::kSum, double factor = 1);

/// The root's bytes to all, in place. dtype: what they are, compared between the ranks.
[[nodiscard]] Collective broadcast(std::span<std::byte> data, std::uint32_t root,
                                   DataType dtype = DataType::kUint8);

/// rooms: one per rank, of any sizes that all ranks have alike; the own one holds this rank's bytes
/// on entry. dtype as above.
[[nodiscard]] Collective all_gather(std::vector<std::span<std::byte>> rooms,
                                    DataType dtype = DataType::kUint8);

/// parts: one per rank, in order, of any sizes that all ranks have alike; left as they are. output:
/// the reduction of part `rank`, as large as that; it may be that part itself. factor: as above.
[[nodiscard]] Collective reduce_scatter(std::vector<Segment> parts, Segment output, DataType dtype,
                                        ReduceOp op = ReduceOp::kSum, double factor = 1);

/// data: d elements; the root's become the reduction, the others' stay as they are. factor: as
/// above.
[[nodiscard]] Collective reduce(void* data, std::uint64_t d, std::uint32_t root, DataType dtype,
                                ReduceOp op = ReduceOp::kSum, double factor = 1);

/// Each rank's bytes, of any size, to the root. rooms: on the root one per rank, as large as what
/// that sends; none elsewhere. The own one may be `data` itself. dtype as above.
[[nodiscard]] Collective gather(std::span<const std::byte> data,
                                std::vector<std::span<std::byte>> rooms, std::uint32_t root,
                                DataType dtype = DataType::kUint8);

/// The root's parts, of any sizes, each to its rank. parts: on the root one per rank; none
/// elsewhere. room: as large as this rank's part; on the root it may be that part itself.
[[nodiscard]] Collective scatter(std::vector<std::span<const std::byte>> parts,
                                 std::span<std::byte> room, std::uint32_t root,
                                 DataType dtype = DataType::kUint8);

/// parts: by rank, of any sizes, what it is sent. rooms: by rank, as large as what that sends here.
/// They must not overlap.
[[nodiscard]] Collective all_to_all(std::vector<std::span<const std::byte>> parts,
                                    std::vector<std::span<std::byte>> rooms,
                                    DataType dtype = DataType::kUint8);

/// Ends when every rank has called it and this rank's earlier collectives have ended.
[[nodiscard]] Collective barrier();

/// The same, called "monitored_barrier": for who wants ranks that mix the two up to hear of it.
[[nodiscard]] Collective monitored_barrier();

/// One rank's part of a sparse tensor in coordinate format: entries with a row of values each.
struct CooEntries {
  /// Where each lies, as one number: indices in row-major order of the sparse dimensions.
  /// Ascending, none twice.
  std::span<const std::uint64_t> places;
  const void* values = nullptr;  ///< as many rows
};
/// What the shape of it is, in which all ranks must agree.
struct CooShape {
  std::vector<std::uint64_t> sizes;  ///< of the whole tensor
  std::uint32_t sparse_dimensions = 0;
  DataType dtype = DataType::kFloat32;

  /// Elements of a row: the product of the dense sizes.
  [[nodiscard]] std::uint64_t row() const;
};
/// The sum: the union of all ranks' places, ascending.
struct CooSum {
  std::vector<std::uint64_t> places;
  std::vector<std::byte> values;
};

/// The exact sum over ranks of their entries, any number on each; rows of one place add up in the
/// order of the ranks. sum: written when all of it is there.
[[nodiscard]] Collective coo_all_reduce(CooEntries entries, const CooShape& shape, CooSum& sum);

/// `one` of several tensors that lie side by side in its memory: ranks must agree on the sizes of
/// each as well.
[[nodiscard]] Collective coalesced(Collective one, std::span<const std::uint64_t> sizes);

/// Matched by (sender, tag), in the order of the calls. The received length must be the expected
/// one.
[[nodiscard]] Collective send(std::span<const std::byte> data, std::uint32_t to, std::int32_t tag);
[[nodiscard]] Collective recv(std::span<std::byte> data, std::uint32_t from, std::int32_t tag);
/// From whichever rank sends first with that tag, which is told by `from`.
[[nodiscard]] Collective recv_any(std::span<std::byte> data, std::int32_t tag, std::uint32_t& from);

/// tensor: d elements of dtype, the gradient in, the reduced gradient out (zeros off the result).
/// residual: d elements of accumulation_type(dtype), in and out; null is a zero residual, discarded
/// afterwards. options.k >= 1 (larger than d means d); what the result means: docs/algorithms.md.
[[nodiscard]] Collective sparse_all_reduce(void* tensor, void* residual, std::uint64_t d,
                                           DataType dtype, const SparseOptions& options);

/// The same of a tensor that lies in several pieces, in this order: one vector, with one residual.
/// delivered: where the result is noted beside.
[[nodiscard]] Collective sparse_all_reduce(std::vector<Segment> tensor, void* residual,
                                           DataType dtype, const SparseOptions& options,
                                           const Delivered& delivered = {});

/// What `auto` would choose for d elements of dtype with these options, whose algorithm is not
/// looked at. Every rank gets the same report. anew: costs are measured now, known or not.
[[nodiscard]] Collective plan(std::uint64_t d, DataType dtype, const SparseOptions& options,
                              PlanReport& report, bool anew = false);

/// The most entries that a sparse all-reduce of d elements among so many ranks delivers: the room
/// that Delivered needs.
[[nodiscard]] std::uint64_t most_delivered(std::uint64_t d, const SparseOptions& options,
                                           std::uint32_t ranks);

/// Entries that are selected already, and room for the result. Both result spans need room for as
/// many entries as the algorithm can deliver: min(d, k), that of `topk` min(d, k * ranks).
struct Preselected {
  /// Ascending, below d; at most options.k.
  std::span<const std::uint32_t> indices;
  /// As many.
  std::span<const float> values;
  std::span<std::uint32_t> result_indices;
  std::span<float> result_values;
  std::uint64_t* result_count = nullptr;
};

/// The exchange of a sparse all-reduce of float32 alone: what is measured where selection is
/// somebody else's.
[[nodiscard]] Collective exchange(const Preselected& entries, std::uint64_t d,
                                  const SparseOptions& options);
}  // namespace gtopk
