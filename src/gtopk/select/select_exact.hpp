// Sparse, select: the exact selection of one rank. One reading sweep over gradient and residual
// computes acc, finds values that are not finite and compacts the candidates; the selection is then
// made among these. It writes neither tensor nor residual, and does not know ranks.
#pragma once

#include <cstddef>

#include "gtopk/types.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/growing_buffer.hpp"
#include "src/gtopk/value/segments.hpp"

namespace gtopk::sparse {

struct Selection {
  std::size_t count = 0;  ///< entries written; fewer than requested if acc has fewer nonzero
                          ///< elements
  bool finite = true;     ///< false if any acc is NaN or Inf; count is then 0
  SelectorState next{};   ///< the selector's state for the next step
};

/// Working storage of select_exact, kept from call to call. Each concurrent selection needs its
/// own.
struct SelectScratch {
  GrowingBuffer indices;
  GrowingBuffer values;
  GrowingBuffer keys;
};

[[nodiscard]] inline SelectScratch& select_scratch_of_this_thread() {
  static thread_local SelectScratch scratch;
  return scratch;
}

/// Selects the first k nonzero elements of acc = gradient + residual in the selection order, sorted
/// by index.
///
/// T is float, double, Bfloat16 or Float16; Value its accumulation type; Index uint32_t (d < 2^32)
/// or uint64_t. `residual` may be null (zeros). `out` has capacity min(k, d). The gradient's cut
/// into pieces does not affect the result.
template <class T, class Value, class Index>
[[nodiscard]] Selection select_exact(Segments<const T> gradient, const Value* residual,
                                     std::size_t d, std::size_t k, EntriesOut<Value, Index> out,
                                     SelectScratch& scratch);

}  // namespace gtopk::sparse
