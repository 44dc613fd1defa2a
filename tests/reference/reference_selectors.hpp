// Reference: what each selector selects of one rank's acc, as docs/algorithms.md words it: with
// maps and sorts, and without a line of src/.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtopk/types.hpp"

namespace gtopk::reference {

/// By index; no zeros among them when they come out of a selection.
template <class Value>
using Entries = std::map<std::uint64_t, Value>;

/// The entries in the selection order, |value| descending, then index ascending. Zeros are not
/// entries.
template <class Value>
[[nodiscard]] std::vector<std::pair<std::uint64_t, Value>> in_order(const Entries<Value>& entries);

/// S_r of a finite acc by options.selector, with options.k or options.density; of a selector that
/// the library does not have: exact. `state` is what the last step left, and then what this one
/// leaves; options.state is not looked at.
template <class Value>
[[nodiscard]] Entries<Value> select(const std::vector<Value>& acc, const SparseOptions& options,
                                    SelectorState& state);

/// k of d elements, given or by density; where ranks select by `block`, the sum of the k_b.
[[nodiscard]] std::uint64_t entries_wanted(const SparseOptions& options, std::uint64_t d);

/// The k_b of a block of so many elements.
[[nodiscard]] std::uint64_t entries_of_block(const SparseOptions& options, std::uint64_t elements);

/// Sets the selector, and of `block` a density and small blocks in the place of k.
void choose_selector(SparseOptions& options, std::uint64_t d, const std::string& selector);

}  // namespace gtopk::reference
