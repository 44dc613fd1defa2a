// Sparse, select: a selector as a row of the registry. It finds the entries that a rank sends; it
// defines which ones and the most of them. A new selector is a file and a row of registry.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "gtopk/selection_rule.hpp"
#include "gtopk/types.hpp"
#include "src/gtopk/select/select_exact.hpp"
#include "src/gtopk/value/list.hpp"
#include "src/gtopk/value/registry.hpp"
#include "src/gtopk/value/segments.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {

/// The input of a selection: acc = gradient + residual.
struct SelectionInput {
  /// d elements of dtype.
  Segments<void> tensor;
  /// d elements of accumulation_type(dtype), or null, which means zeros.
  const void* residual = nullptr;
  std::uint64_t d = 0;
  DataType dtype = DataType::kFloat32;
  std::uint64_t k = 0;
  EntryType entry;
  /// For selectors by blocks: the density that determines k, and the elements per block.
  double density = 0;
  std::uint64_t block = 0;
  /// The state after the last step; zeros mean that there is none.
  SelectorState state{};
};

struct SelectorRow {
  /// Writes the entries, ascending, into `out`, which has capacity most(d, k). It is a pure
  /// function, except for the scratch memory.
  using Select = Selection (*)(const SelectionInput& input, const List& out,
                               SelectScratch& scratch);
  using Most = std::uint64_t (*)(std::uint64_t d, std::uint64_t k);
  using OnDevice = std::optional<SelectionRule> (*)(std::uint64_t d, std::uint64_t k,
                                                    const SparseOptions& options);

  std::string_view name;
  std::string_view description;
  Select select;
  /// The most entries that it returns; if null, k.
  Most most = nullptr;
  /// Whether every block of `block` elements has its own k, which merging nodes also respect. This
  /// needs a density.
  bool per_block = false;
  /// The rule by which a device makes the same selection (device/selection.hpp), for d >= 1 and 1
  /// <= k <= d; nullopt if no device can make it. If null, no device ever can.
  OnDevice on_device = nullptr;

  [[nodiscard]] std::uint64_t most_of(std::uint64_t d, std::uint64_t k) const {
    return most == nullptr ? k : most(d, k);
  }
};

/// The bound to which an approximate selection is cut: min(d, ceil(4k/3)), k <= d.
[[nodiscard]] constexpr std::uint64_t four_thirds(std::uint64_t d, std::uint64_t k) {
  return k + std::min(d - k, k / 3 + (k % 3 == 0 ? 0 : 1));
}

/// Calls select.operator()<T, Index>() with the types of the call.
template <class Select>
Selection visit_selection(const SelectionInput& input, Select select) {
  Selection selection;
  visit_floating(input.dtype, [&]<class T>() {
    selection = input.entry.index_bytes == 8 ? select.template operator()<T, std::uint64_t>()
                                             : select.template operator()<T, std::uint32_t>();
  });
  return selection;
}

/// The rows of registry.cpp, and rows added at run time.
[[nodiscard]] Registry<SelectorRow>& selector_registry();

extern const SelectorRow kExact;
extern const SelectorRow kGaussian;
extern const SelectorRow kSampled;
extern const SelectorRow kThreshold;
extern const SelectorRow kBlock;

}  // namespace gtopk::sparse
