// Sparse, algorithms room: the whole way of one gradient: select, exchange, commit.
#pragma once

#include <cstdint>
#include <span>

#include "collectives/signature.hpp"
#include "engine/group_view.hpp"
#include "engine/task.hpp"
#include "gtopk/merge/merge.hpp"
#include "gtopk/select/select_exact.hpp"
#include "gtopk/types.hpp"

namespace gtopk::sparse {

/// Working storage of a process, kept from call to call: of the engine's thread, and of the one
/// beside it.
struct Workspace {
  SelectScratch select;
  SelectScratch select_beside;
  MergeScratch merge;
};

/// One rank's part. Pointers stay valid until the operation has gone.
struct SparseCall {
  void* tensor = nullptr;  ///< d elements of dtype: the gradient, then the result (zeros off it)
  void* residual =
      nullptr;  ///< d elements of accumulation_type(dtype), or null: zeros, discarded afterwards
  std::uint64_t d = 0;
  DataType dtype = DataType::kFloat32;
  SparseOptions options;
};

/// What all ranks must agree on. Throws Error{kInvalidArgument} for a call that no rank may make.
[[nodiscard]] collectives::Signature signature_of(const SparseCall& call);

/// Throws Error{kMismatch, kPeerFailed, kTimeout, kAborted}; tensor and residual are then as they
/// were. NaN or infinity on any rank, or an overflow: the tensor is NaN on every rank and the
/// residual as it was.
engine::Task<void> sparse_all_reduce(engine::GroupView& group, SparseCall call,
                                     Workspace& workspace);

/// The collective alone, for lists that are already selected: `own` in, the result out.
struct PreselectedCall {
  std::span<const std::uint32_t> indices;  ///< ascending, below d; at most k
  std::span<const float> values;           ///< as many
  std::uint64_t d = 0;
  SparseOptions options;
  std::span<std::uint32_t> result_indices;  ///< room for the largest result, as result_values
  std::span<float> result_values;
  std::uint64_t* result_count = nullptr;
};
/// Throws Error{kInvalidArgument} for a call that no rank may make.
void check_preselected(const PreselectedCall& call, std::uint32_t ranks);
engine::Task<void> exchange_preselected(engine::GroupView& group, PreselectedCall call,
                                        Workspace& workspace);

}  // namespace gtopk::sparse
