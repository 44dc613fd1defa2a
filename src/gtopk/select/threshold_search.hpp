// Sparse, select: the search that approximate selectors share: a threshold that is adjusted until
// the number of entries that reach it is within bounds. It does not know the source of the
// threshold.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/gtopk/select/candidates.hpp"
#include "src/gtopk/select/correction.hpp"
#include "src/gtopk/select/select_exact.hpp"
#include "src/gtopk/select/selector.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/segments.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {

/// The search of one selection. Counts cover all of acc, but only the first four_thirds(d, k) + 1
/// entries are kept, because more are already too many.
template <class T, class Index>
class ThresholdSearch {
 public:
  using Value = Accumulation<T>;

  ThresholdSearch(const SelectionInput& input, SelectScratch& scratch)
      : d_(static_cast<std::size_t>(input.d)),
        k_(static_cast<std::size_t>(input.k)),
        most_(static_cast<std::size_t>(four_thirds(input.d, input.k))),
        candidates_(Segments<T>(input.tensor), static_cast<const Value*>(input.residual), d_,
                    most_ + 1, scratch) {}

  /// Moves the threshold by at most correction.times steps. Returns false if a value is not finite.
  [[nodiscard]] bool search(double threshold, const Correction& correction) {
    threshold_ = threshold;
    for (int left = correction.times;; --left) {
      if (!count(left == 0 ? 1 : correction.ahead)) {
        return false;
      }
      const bool few = correction.too_few(count_, k_);
      within_ = !few && !correction.too_many(count_, k_);
      if (within_ || left == 0) {
        return true;
      }
      threshold_ *= few ? correction.down : correction.up;
    }
  }

  [[nodiscard]] double threshold() const { return threshold_; }
  /// The number of entries that reach the threshold. It is exact up to four_thirds(d, k), and
  /// otherwise some larger number.
  [[nodiscard]] std::size_t count() const { return count_; }
  /// Whether the last count was within bounds.
  [[nodiscard]] bool within() const { return within_; }

  /// Selects the entries that reach the threshold, but at most the first four_thirds(d, k).
  [[nodiscard]] Selection reaching(EntriesOut<Value, Index> out) {
    candidates_.keep_reaching(key_reaching<Value>(threshold_));
    if (candidates_.size() > most_) {
      (void)candidates_.keep_first(most_);
    }
    return {.count = candidates_.write(out)};
  }

  /// Selects the first k, from the candidates of the search if they are enough.
  [[nodiscard]] Selection exact(EntriesOut<Value, Index> out) {
    if (candidates_.size() < k_ && candidates_.first_threshold() > 1) {
      candidates_.start(1);
      if (!candidates_.sweep(0, d_)) {
        return {.finite = false};
      }
    }
    if (candidates_.size() > k_) {
      (void)candidates_.keep_first(k_);
    }
    return {.count = candidates_.write(out)};
  }

 private:
  /// Counts the entries that reach the threshold, with a sweep if the last one skipped such
  /// entries.
  [[nodiscard]] bool count(double ahead) {
    const Key<Value> key = key_reaching<Value>(threshold_);
    if (!swept_ || key < candidates_.first_threshold()) {
      candidates_.start(std::min(key, key_reaching<Value>(threshold_ * ahead)));
      if (!candidates_.sweep(0, d_)) {
        return false;
      }
      swept_ = true;
    }
    count_ = candidates_.reaching(key);
    return true;
  }

  std::size_t d_;
  std::size_t k_;
  std::size_t most_;
  Candidates<T, Index> candidates_;
  bool swept_ = false;
  double threshold_ = 0;
  std::size_t count_ = 0;
  bool within_ = false;
};

}  // namespace gtopk::sparse
