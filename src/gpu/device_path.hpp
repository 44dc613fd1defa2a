// GPU: the path that a sparse all-reduce of tensors on a device takes there. These are pure
// functions of the call's arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "gtopk/collectives.hpp"
#include "gtopk/selection_rule.hpp"
#include "gtopk/types.hpp"

namespace gtopk::gpu {

struct DevicePath {
  std::uint64_t d = 0;
  DataType dtype = DataType::kFloat32;
  std::size_t pieces = 1;
  double divisor = 1;
  /// The selection with which it begins; empty if there is none.
  std::optional<SelectionRule> rule;
  DetachedCapacity edits;
  /// Set if there is no selection, or if the algorithm is chosen by `auto`, which may sum all of
  /// acc.
  std::optional<AccCapacity> sums;

  [[nodiscard]] bool is_auto() const { return rule && sums; }
  /// Whether the operation may request acc while it runs.
  [[nodiscard]] bool asks() const { return has_sketch() || (is_auto() && sums->sums != 0); }
  [[nodiscard]] bool has_sketch() const { return sums && sums->columns != 0; }
};

/// Facts about a call's tensors, in addition to its options.
struct Asked {
  std::uint64_t d = 0;
  DataType dtype = DataType::kFloat32;
  std::size_t pieces = 1;
  std::uint32_t ranks = 1;
};

/// Returns the path, or nullopt if the call has to be staged because its algorithm or selector has
/// no kernel, indices need more than 32 bits, or the lists would be longer than the tensor. Throws
/// Error{kInvalidArgument} for an invalid call.
[[nodiscard]] std::optional<DevicePath> device_path_of(const Asked& asked,
                                                       const SparseOptions& options);

}  // namespace gtopk::gpu
