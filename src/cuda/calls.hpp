// CUDA: the interface of the kernel library, as plain calls with plain arguments. The library
// is loaded at the first call with a tensor on a device. Each call enqueues its launches on a
// stream and returns. Pointers are device pointers unless stated otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/detached.hpp"
#include "gtopk/selection_rule.hpp"
#include "gtopk/types.hpp"

namespace gtopk::cuda {

/// Contiguous elements, with the layout of gtopk::sparse::device::Piece.
struct PieceOf {
  void* tensor = nullptr;
  void* residual = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  std::uint64_t first_tile = 0;
};

/// The type of an element's index in all lists.
using Index = std::uint32_t;

/// A vector of d elements, fewer than 2^32, and its residual.
struct VectorOf {
  DataType dtype = DataType::kFloat32;
  const PieceOf* pieces = nullptr;
  std::uint32_t count = 0;
  std::uint64_t tiles = 0;
  std::uint64_t d = 0;
};

struct ListOf {
  void* indices = nullptr;
  void* values = nullptr;
  std::uint64_t size = 0;
};

/// Selects entries of acc (device/selection.hpp). Lists and report may lie in pinned memory.
struct SelectCall {
  VectorOf acc;
  SelectionRule rule;
  /// Its size is select_workspace_bytes().
  void* workspace = nullptr;
  ListOf kept;             ///< capacity rule.most
  void* report = nullptr;  ///< device::Report
  /// The numbers of the SelectorState that the last step left, and of the one that this step
  /// leaves. Used only for the kind kThreshold; may lie in pinned memory.
  const double* state = nullptr;
  double* next = nullptr;
};

/// Commits a step (device/commit.hpp). Edits and counts may lie in pinned memory, and are read when
/// the stream reaches the call.
struct CommitCall {
  VectorOf acc;
  void* momentum = nullptr;
  void* cleared = nullptr;
  ListOf returned;
  ListOf delivered;
  const void* counts = nullptr;  ///< EditCounts
  double divisor = 1;
  /// May be null. If its value is not 0, the call does nothing; the counts then say that nothing
  /// has happened.
  const std::uint64_t* unless = nullptr;
};

/// Writes acc to `to`, which may be pinned memory (device/sums.hpp).
struct AccumulateCall {
  VectorOf acc;
  void* to = nullptr;
  /// May be null. If its value is 0, the call does nothing.
  const std::uint64_t* only_if = nullptr;
};

/// Reads acc at `count` indices (device/sums.hpp). The indices, the values and the report may lie
/// in pinned memory; *finite is 1 beforehand.
struct GatherCall {
  VectorOf acc;
  const void* indices = nullptr;
  std::uint64_t count = 0;
  void* values = nullptr;
  std::uint64_t* finite = nullptr;
};

/// Computes the cells of the sketch of acc, which may lie in pinned memory (device/sketch.hpp).
struct SketchCall {
  VectorOf acc;
  std::uint64_t seed = 0;
  std::uint64_t columns = 0;
  /// Its size is sketch_workspace_bytes().
  void* workspace = nullptr;
  void* cells = nullptr;
};

/// Finds the heavy elements in summed cells (device/sketch.hpp). Cells, entries and report may lie
/// in pinned memory.
struct FindCall {
  DataType values = DataType::kFloat32;
  std::uint64_t d = 0;
  std::uint64_t seed = 0;
  std::uint64_t columns = 0;
  const void* cells = nullptr;
  std::uint64_t most = 0;
  /// Its size is sketch_workspace_bytes().
  void* workspace = nullptr;
  ListOf heaviest;         ///< capacity `most`
  void* report = nullptr;  ///< device::Report
};

/// Commits sums of all of acc (device/sums.hpp). Sums and counts may lie in pinned memory, and are
/// read when the stream reaches the call.
struct CommitWholeCall {
  VectorOf acc;
  const void* sums = nullptr;
  const void* counts = nullptr;  ///< EditCounts
  double divisor = 1;
  /// May be null. If its value is 0, the call does nothing.
  const std::uint64_t* only_if = nullptr;
};

/// The library's one symbol, gtopk_cuda_calls(), returns this. Results are of type cudaError_t,
/// with 0 for success.
struct Calls {
  /// The version of this struct and of all other structs in this header.
  static constexpr std::uint32_t kVersion = 11;

  std::uint32_t version;
  /// Fills in begin and first_tile of pieces in host memory; returns the number of tiles.
  std::uint64_t (*number_tiles)(PieceOf* pieces, std::uint32_t count);
  std::size_t (*select_workspace_bytes)(const VectorOf& acc, const SelectionRule& rule);
  int (*select)(const SelectCall& call, void* stream);
  int (*commit)(const CommitCall& call, void* stream);
  int (*accumulate)(const AccumulateCall& call, void* stream);
  const char* (*error_name)(int error);
  int (*gather)(const GatherCall& call, void* stream);
  int (*commit_whole)(const CommitWholeCall& call, void* stream);
  /// The workspace of both sketch calls, with this many columns for d elements, if `most` of them
  /// are found.
  std::size_t (*sketch_workspace_bytes)(DataType values, std::uint64_t columns, std::uint64_t d,
                                        std::uint64_t most);
  int (*sketch)(const SketchCall& call, void* stream);
  int (*find)(const FindCall& call, void* stream);
  /// Loads the kernels of calls on tensors of that type on the current device.
  int (*load)(DataType dtype);
  /// The number of kernels that the library has launched in this process. See launches.hpp.
  std::uint64_t (*launched)();
};

}  // namespace gtopk::cuda
