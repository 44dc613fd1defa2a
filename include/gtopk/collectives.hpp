/// @file
/// The built-in collectives, each as a value for Communicator::run. They throw
/// Error{kInvalidArgument} if the arguments are wrong on any rank; the memory must stay valid until
/// `done`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gtopk/buffer.hpp"
#include "gtopk/collective.hpp"
#include "gtopk/detached.hpp"
#include "gtopk/device_acc.hpp"
#include "gtopk/plan.hpp"
#include "gtopk/types.hpp"

namespace gtopk {

// Collectives that reduce take host memory only. Collectives that only move bytes also take device
// memory for long messages, if the transport supports it (Communicator::takes) and nothing has to
// be copied on this rank.

/// Reduces `data` in place. `factor` is this rank's factor for kPremulSum. It is rounded to the
/// accumulation type, and each product is rounded once to dtype.
[[nodiscard]] Collective all_reduce(Buffer data, ReduceOp op = ReduceOp::kSum, double factor = 1);
/// The same for d elements of host memory.
[[nodiscard]] inline Collective all_reduce(void* data, std::uint64_t d, DataType dtype,
                                           ReduceOp op = ReduceOp::kSum, double factor = 1) {
  return all_reduce(Buffer(data, d, dtype), op, factor);
}

/// Sends the root's elements to all ranks, in place. The type is used only to check that all ranks
/// pass the same.
[[nodiscard]] Collective broadcast(Buffer data, std::uint32_t root);

/// Sends each rank's elements to all ranks. `buffers` holds one buffer per rank. Sizes may differ
/// from buffer to buffer, but must be the same on all ranks. All buffers have one type, which is
/// checked as in broadcast(). On entry this rank's own buffer holds its elements.
[[nodiscard]] Collective all_gather(const Buffers& buffers);

/// Reduces each part to its rank. `parts` holds one part per rank, in rank order. Sizes may differ
/// from part to part, but must be the same on all ranks; all parts have one type. Parts are not
/// modified. `output` gets the reduction of part `rank` and has its size; it may be that part
/// itself. `factor` is used as in all_reduce().
[[nodiscard]] Collective reduce_scatter(const ConstBuffers& parts, Buffer output,
                                        ReduceOp op = ReduceOp::kSum, double factor = 1);

/// Reduces `data` to the root, in place; other ranks' data is not modified. `factor` is used as in
/// all_reduce().
[[nodiscard]] Collective reduce(Buffer data, std::uint32_t root, ReduceOp op = ReduceOp::kSum,
                                double factor = 1);

/// Sends each rank's elements, any number of one type, to the root. On the root, `buffers` holds
/// one buffer per rank, of the size that the rank sends; elsewhere it is empty. The root's own
/// buffer may be `data` itself; if on a device, it must be.
[[nodiscard]] Collective gather(ConstBuffer data, const Buffers& buffers, std::uint32_t root);

/// Sends each of the root's parts, of any sizes and one type, to its rank. On the root, `parts`
/// holds one part per rank; elsewhere it is empty. `output` has the size of this rank's part. On
/// the root it may be that part itself; if on a device, it must be.
[[nodiscard]] Collective scatter(const ConstBuffers& parts, Buffer output, std::uint32_t root);

/// Sends `parts[r]`, of any size, to rank r and receives into `buffers[r]`, which has the size of
/// what r sends to this rank; all are of one type. Parts and buffers must not overlap, except that
/// this rank's own buffer may be its part itself; if on a device, it must be.
[[nodiscard]] Collective all_to_all(const ConstBuffers& parts, const Buffers& buffers);

/// Completes when every rank has called it and this rank's earlier collectives have ended.
[[nodiscard]] Collective barrier();

/// Does the same as barrier() under the name "monitored_barrier". If some ranks call one and some
/// the other, all get an error.
[[nodiscard]] Collective monitored_barrier();

/// One rank's part of a sparse tensor in coordinate (COO) format: entries, each a row of values.
struct CooEntries {
  /// The row-major linear index of each entry over the sparse dimensions. Strictly ascending.
  std::span<const std::uint64_t> places;
  const void* values = nullptr;  ///< one row per index
};
/// The tensor's shape; must be the same on all ranks.
struct CooShape {
  std::vector<std::uint64_t> sizes;     ///< all dimensions, sparse and dense
  std::uint32_t sparse_dimensions = 0;  ///< number of sparse dimensions, which come first
  DataType dtype = DataType::kFloat32;  ///< type of the values

  /// Elements in a row: the product of the dense sizes.
  [[nodiscard]] std::uint64_t row() const;
};
/// The sum: the union of all ranks' places, ascending, with one row for each.
struct CooSum {
  std::vector<std::uint64_t> places;  ///< linear indices, as in CooEntries
  std::vector<std::byte> values;      ///< one row per place
};

/// The exact sum of all ranks' entries, any number per rank; rows of the same place are added in
/// rank order. `sum` is written only on success.
[[nodiscard]] Collective coo_all_reduce(CooEntries entries, const CooShape& shape, CooSum& sum);

/// Runs `one` over several tensors that are contiguous in its memory. Ranks must also agree on the
/// size of each tensor.
[[nodiscard]] Collective coalesced(Collective one, std::span<const std::uint64_t> sizes);

/// Point-to-point messages of at most this many bytes are copied on the way, so both ends must be
/// in host memory.
inline constexpr std::size_t kShortMessage = 8160;
/// Broadcasts of at most this many bytes are copied likewise, and then take half the steps.
inline constexpr std::size_t kShortBroadcast = 16384;
/// All-gathers of at most this many bytes (all parts together) are copied likewise, and then take
/// even fewer steps.
inline constexpr std::size_t kShortAllGather = 65536;

/// Sends a point-to-point message. Messages are matched by (sender, tag) in call order. The receive
/// fails if the message does not have the size of its `data`; types are not compared.
[[nodiscard]] Collective send(ConstBuffer data, std::uint32_t to, std::int32_t tag);
/// The receiving end of send().
[[nodiscard]] Collective recv(Buffer data, std::uint32_t from, std::int32_t tag);
/// Receives from the first rank that sends with that tag; sets `from` to that rank.
[[nodiscard]] Collective recv_any(Buffer data, std::int32_t tag, std::uint32_t& from);

/// Reduces the largest elements of all ranks' gradients, and keeps the others in residuals.
/// `tensor` holds the gradient on entry and the reduced gradient on return (zero where nothing was
/// delivered). `residual` has the same number of elements, of accumulation_type(dtype), and is read
/// and written; Buffer() means a zero residual that is discarded. options.k >= 1 (larger than d
/// means d). docs/algorithms.md defines the result.
[[nodiscard]] Collective sparse_all_reduce(Buffer tensor, Buffer residual,
                                           const SparseOptions& options);
/// The same for d elements of host memory; `residual` may be null.
[[nodiscard]] inline Collective sparse_all_reduce(void* tensor, void* residual, std::uint64_t d,
                                                  DataType dtype, const SparseOptions& options) {
  const Buffer kept =
      residual == nullptr ? Buffer() : Buffer(residual, d, accumulation_type(dtype));
  return sparse_all_reduce(Buffer(tensor, d, dtype), kept, options);
}

/// The same for a tensor in several pieces of one type, which form one vector in this order, with
/// one residual. If given, `delivered` records the result's entries as well.
[[nodiscard]] Collective sparse_all_reduce(const Buffers& tensor, Buffer residual,
                                           const SparseOptions& options,
                                           const Delivered& delivered = {});

/// What `auto` would choose for d elements of dtype with these options; options.algorithm is
/// ignored. Every rank gets the same report. If `anew` is true, costs are measured even if they are
/// known.
[[nodiscard]] Collective plan(std::uint64_t d, DataType dtype, const SparseOptions& options,
                              PlanReport& report, bool anew = false);

/// Throws Error{kInvalidArgument} for options that are invalid whatever the tensor and the group,
/// or that would change nothing.
void check_options(const SparseOptions& options);

/// What a call's options alone determine.
struct CallTraits {
  bool selects = false;              ///< each rank selects its own entries
  bool delivers_all = false;         ///< all d elements, in order: neither k nor density applies
  bool delivers_selections = false;  ///< all that ranks select, except for rounding losses
  bool whole_sums = false;           ///< sums of selections are whole; contributors can be counted
  bool empties_residual = false;     ///< nothing is left for the next step
  bool adds_elements = false;        ///< adds elements of several accs; finite ones may overflow
  bool rounds = false;               ///< the wire rounds values
  bool per_block = false;            ///< the selector takes a density for each block
};
/// Throws Error{kInvalidArgument} for invalid options, and for the algorithm `auto`.
[[nodiscard]] CallTraits traits_of(const SparseOptions& options);

/// The most entries that a sparse all-reduce of d elements over `ranks` ranks can deliver.
/// Delivered needs this capacity.
[[nodiscard]] std::uint64_t most_delivered(std::uint64_t d, const SparseOptions& options,
                                           std::uint32_t ranks);

/// The capacity that a detached call needs. nullopt if the call cannot be detached: its algorithm
/// has no selection per rank, or no device implements its selector (selection_rule.hpp). Throws
/// Error{kInvalidArgument} for an invalid call.
[[nodiscard]] std::optional<DetachedCapacity> detached_capacity(std::uint64_t d, DataType dtype,
                                                                const SparseOptions& options,
                                                                std::uint32_t ranks);

/// The divisor of delivered sums, in the accumulation type.
[[nodiscard]] double detached_divisor(const SparseOptions& options, std::uint32_t ranks);

/// Like sparse_all_reduce() on a tensor; options.momentum is ignored.
[[nodiscard]] Collective sparse_all_reduce(const Detached& step, std::uint64_t d, DataType dtype,
                                           const SparseOptions& options,
                                           const Delivered& delivered = {});

/// The capacity of a call in which no rank selects, and whose tensor stays on a device. nullopt if
/// the tensor cannot stay there, because its algorithm selects or cannot use a device. Throws
/// Error{kInvalidArgument} for an invalid call.
[[nodiscard]] std::optional<AccCapacity> acc_capacity(std::uint64_t d, DataType dtype,
                                                      const SparseOptions& options);

/// Writes the indices of a `drawn` capacity, ascending: capacity.delivered indices below d, of
/// capacity.index_bytes bytes each.
void draw_indices(const AccCapacity& capacity, std::uint64_t d, std::uint64_t seed, void* indices);

/// The same for AccOnDevice.
[[nodiscard]] Collective sparse_all_reduce(const AccOnDevice& step, std::uint64_t d, DataType dtype,
                                           const SparseOptions& options,
                                           const Delivered& delivered = {});

/// The capacity of a call that leaves its algorithm to `auto`, and whose tensor stays on a device.
/// nullopt if the call names an algorithm, or if no device implements its selector. Throws
/// Error{kInvalidArgument} for an invalid call.
[[nodiscard]] std::optional<AutoCapacity> auto_capacity(std::uint64_t d, DataType dtype,
                                                        const SparseOptions& options,
                                                        std::uint32_t ranks);

/// The same for AutoOnDevice.
[[nodiscard]] Collective sparse_all_reduce(const AutoOnDevice& step, std::uint64_t d,
                                           DataType dtype, const SparseOptions& options);

/// Preselected entries, and buffers for the result. Both result spans must hold as many entries as
/// the algorithm can deliver: min(d, k), or min(d, k * ranks) for `topk`.
struct Preselected {
  /// Ascending, below d; at most options.k.
  std::span<const std::uint32_t> indices;
  /// One finite value per index.
  std::span<const float> values;
  std::span<std::uint32_t> result_indices;  ///< receives the indices of the result, ascending
  std::span<float> result_values;           ///< receives their sums
  std::uint64_t* result_count = nullptr;    ///< receives the number of entries in the result
};

/// Runs only the exchange of a float32 sparse all-reduce, to measure it without the selection.
/// Throws Error{kInvalidArgument} for entries that are not as described; fails with the same error
/// on every rank if a sum is not finite.
[[nodiscard]] Collective exchange(const Preselected& entries, std::uint64_t d,
                                  const SparseOptions& options);
}  // namespace gtopk
