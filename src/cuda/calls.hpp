// CUDA room: what the kernels' library does, as plain calls with plain arguments: of whoever has
// tensors on a device, to a library that is loaded when the first one turns up. Each call hands its
// launches to a stream and returns. Pointers are the device's unless they say otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/types.hpp"

namespace gtopk::cuda {

/// As gtopk::sparse::device::Piece: elements that lie together.
struct PieceOf {
  void* tensor = nullptr;
  void* residual = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  std::uint64_t first_tile = 0;
};

/// A vector of d elements, and what is accumulated beside it.
struct VectorOf {
  DataType dtype = DataType::kFloat32;
  /// 4, or 8 if d >= 2^32.
  std::uint32_t index_bytes = 4;
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

/// device/select.hpp: the first k of acc. Lists and report may lie in pinned memory.
struct SelectCall {
  VectorOf acc;
  std::uint64_t k = 0;
  /// select_room() bytes.
  void* room = nullptr;
  ListOf kept;
  void* report = nullptr;         ///< device::Report
  std::uint64_t* last = nullptr;  ///< or null
};

/// device/commit.hpp. Edits and counts may lie in pinned memory, and are read when the stream comes
/// to it.
struct CommitCall {
  VectorOf acc;
  void* momentum = nullptr;
  void* cleared = nullptr;
  ListOf returned;
  ListOf delivered;
  const void* counts = nullptr;  ///< EditCounts
  double divisor = 1;
};

/// device/merge.hpp.
struct MergeCall {
  DataType values = DataType::kFloat32;
  std::uint32_t index_bytes = 4;
  ListOf a;
  ListOf b;
  std::uint64_t k = 0;
  /// merge_room() bytes.
  void* room = nullptr;
  ListOf kept;
  ListOf dropped;  ///< null: nobody wants it
  void* report = nullptr;
};

/// device/commit.hpp: acc to `to`; *finite becomes 0 where something is not.
struct AccumulateCall {
  VectorOf acc;
  void* to = nullptr;
  std::uint32_t* finite = nullptr;
};

/// The library's one symbol, gtopk_cuda_calls(), returns this. Results are cudaError_t, 0 for
/// success.
struct Calls {
  /// Of this struct and all others here.
  static constexpr std::uint32_t kVersion = 1;

  std::uint32_t version;
  /// Fills in begin and first_tile of pieces in the host's memory; how many tiles they have.
  std::uint64_t (*number_tiles)(PieceOf* pieces, std::uint32_t count);
  std::size_t (*select_room)(const VectorOf& acc, std::uint64_t k);
  std::size_t (*merge_room)(DataType values, std::uint32_t index_bytes, std::uint64_t entries);
  int (*select)(const SelectCall& call, void* stream);
  int (*commit)(const CommitCall& call, void* stream);
  int (*merge)(const MergeCall& call, void* stream);
  int (*accumulate)(const AccumulateCall& call, void* stream);
  const char* (*error_name)(int error);
};

}  // namespace gtopk::cuda
