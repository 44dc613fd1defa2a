// Sparse, select: the row of `threshold`: the last step's threshold, corrected by a few small
// steps, or the exact threshold if that is not enough. It takes one sweep, or two if acc has shrunk
// by more than a fifth.
//
// Li and Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning" (Ok-Topk), arXiv
// 2201.07598, section 3.1: thresholds change slowly from step to step, so they are reused, scaled
// by 1.025 if the count requires it (their code for BERT). They recompute thresholds exactly every
// tau steps; here that is done when the count requires it.
#include <cmath>

#include "src/gtopk/select/correction.hpp"
#include "src/gtopk/select/selector.hpp"
#include "src/gtopk/select/threshold_search.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

/// numbers[0] of the state is the threshold; 0 means none.
SelectorState state_of(double threshold) { return {.numbers = {threshold}}; }

/// The state after an exact selection: its smallest magnitude, if k entries were found.
template <class Value>
SelectorState state_after(const Value* values, std::size_t count, std::size_t k) {
  if (count < k) {
    return {};
  }
  double smallest = std::fabs(static_cast<double>(values[0]));
  for (std::size_t i = 1; i < count; ++i) {
    smallest = std::fmin(smallest, std::fabs(static_cast<double>(values[i])));
  }
  return state_of(smallest);
}

Selection threshold_select(const SelectionInput& input, const List& out, SelectScratch& scratch) {
  const KeepDenormals guard;
  return visit_selection(input, [&]<class T, class Index>() -> Selection {
    using Value = Accumulation<T>;
    if (input.d == 0) {
      return {};
    }
    const auto output = out.output<Value, Index>();
    const auto k = static_cast<std::size_t>(input.k);
    const double last = input.state.numbers[0];
    Selection selection;
    if (std::isfinite(last) && last > 0) {
      ThresholdSearch<T, Index> search(input, scratch);
      if (!search.search(last, kThresholdCorrection)) {
        return {.finite = false};
      }
      if (search.within()) {
        selection = search.reaching(output);
        selection.next = state_of(search.threshold());
        return selection;
      }
      selection = search.exact(output);
    } else {
      selection = select_exact<T, Value, Index>(
          Segments<T>(input.tensor), static_cast<const Value*>(input.residual),
          static_cast<std::size_t>(input.d), k, output, scratch);
    }
    if (selection.finite) {
      selection.next = state_after(output.values, selection.count, k);
    }
    return selection;
  });
}

std::optional<SelectionRule> threshold_on_device(std::uint64_t d, std::uint64_t k,
                                                 const SparseOptions& options) {
  if (options.state == nullptr) {
    return SelectionRule{.k = k, .most = k};
  }
  return SelectionRule{.kind = SelectionRule::Kind::kThreshold, .k = k, .most = four_thirds(d, k)};
}

}  // namespace

const SelectorRow kThreshold{
    .name = "threshold",
    .description =
        "entries from the last step's threshold up, corrected; 2k/3 to 4k/3, exactly k "
        "without one",
    .select = threshold_select,
    .most = four_thirds,
    .on_device = threshold_on_device};

}  // namespace gtopk::sparse
