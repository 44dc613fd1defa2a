// Sparse, select: the candidates of a selection: one sweep over gradient and residual keeps
// the first entries of acc in the selection order that reach a threshold.
//
// Candidates arrive in index order. When there are more than a bound, all but the first `keep` of
// them in the selection order are dropped, and the threshold rises above the last of these, because
// later entries with an equal key have larger indices and lose. So memory stays O(keep) for any
// data and any threshold, and the threshold affects only how often entries are dropped. This module
// does not know selectors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/gtopk/select/sample.hpp"
#include "src/gtopk/select/select_exact.hpp"
#include "src/gtopk/select/sweep.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/growing_buffer.hpp"
#include "src/gtopk/value/kth_key.hpp"
#include "src/gtopk/value/segments.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {

template <class T, class Index>
class Candidates {
 public:
  using Value = Accumulation<T>;

  /// Keeps the first `keep` >= 1 entries of any sweep. `span` is the most elements that are swept
  /// before the next start().
  Candidates(Segments<const T> gradient, const Value* residual, std::size_t span, std::size_t keep,
             SelectScratch& scratch)
      : cursor_(gradient),
        residual_(residual),
        keep_(keep),
        bound_(keep + std::max(keep, kFewest)),
        capacity_(std::min(bound_ + kSweepStretch, span)),
        indices_(scratch.indices.array<Index>(capacity_)),
        values_(scratch.values.array<Value>(capacity_)),
        keys_(scratch.keys) {
    static_cast<void>(keys_.array<Key<Value>>(capacity_));  // sized by shape, not by data
  }

  /// Forgets all candidates; from now on, entries below `threshold` (at least 1) are skipped.
  void start(Key<Value> threshold) {
    size_ = 0;
    first_threshold_ = threshold;
    threshold_ = threshold;
  }

  /// Sweeps [begin, end) of acc, which follows everything swept since start(). Returns false if a
  /// value is not finite.
  [[nodiscard]] bool sweep(std::size_t begin, std::size_t end) {
    for (std::size_t stretch_end = 0; begin < end; begin = stretch_end) {
      cursor_.go_to(begin);
      stretch_end = std::min({begin + kSweepStretch, cursor_.end(), end});
      if (!take(cursor_.at(begin), residual_ == nullptr ? nullptr : residual_ + begin, begin,
                stretch_end - begin)) {
        return false;
      }
    }
    return true;
  }

  /// Does the same for at most kSweepStretch elements of acc at these addresses, starting at
  /// element `begin`.
  [[nodiscard]] bool take(const T* gradient, const Value* residual, std::size_t begin,
                          std::size_t count) {
    StretchCandidates<Value> found;
    const std::size_t large = sweep_stretch(gradient, residual, count, threshold_, found);
    Key<Value> largest = 0;
    for (std::size_t i = 0; i < large; ++i) {
      largest = std::max(largest, magnitude_key(found.values[i]));
      indices_[size_ + i] = static_cast<Index>(begin + found.offsets[i]);
      values_[size_ + i] = found.values[i];
    }
    if (!is_finite_key<Value>(largest)) {
      return false;
    }
    size_ += large;
    if (size_ > bound_) {
      threshold_ = keep_first(keep_) + 1;
    }
    return true;
  }

  [[nodiscard]] std::size_t size() const { return size_; }
  /// The threshold passed to start().
  [[nodiscard]] Key<Value> first_threshold() const { return first_threshold_; }

  /// The number of entries that reach `key` >= first_threshold(). It is exact below `keep`;
  /// otherwise it is at least `keep`.
  [[nodiscard]] std::size_t reaching(Key<Value> key) const {
    return static_cast<std::size_t>(std::count_if(
        values_, values_ + size_, [key](Value value) { return magnitude_key(value) >= key; }));
  }

  /// Drops entries that do not reach `key`.
  void keep_reaching(Key<Value> key) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      const bool reaches = magnitude_key(values_[i]) >= key;
      indices_[kept] = indices_[i];
      values_[kept] = values_[i];
      kept += reaches ? 1U : 0U;
    }
    size_ = kept;
  }

  /// Drops all but the first k <= keep in the selection order, k < size(). Returns the k-th key.
  Key<Value> keep_first(std::size_t k) {
    auto* keys = keys_.array<Key<Value>>(capacity_);
    std::transform(values_, values_ + size_, keys, magnitude_key<Value>);
    const auto [kth, larger, equal] = kth_largest(keys, size_, k);
    // The entries with the k-th key before `equals_end` stay.
    std::size_t equals_end = size_;
    if (larger + equal > k) {
      equals_end = 0;
      for (std::size_t left = k - larger; left > 0; ++equals_end) {
        left -= magnitude_key(values_[equals_end]) == kth ? 1U : 0U;
      }
    }
    std::size_t kept = 0;
    const auto keep = [&](std::size_t begin, std::size_t end, Key<Value> least) {
      for (std::size_t i = begin; i < end; ++i) {
        const Key<Value> key = magnitude_key(values_[i]);
        indices_[kept] = indices_[i];
        values_[kept] = values_[i];
        kept += key >= least ? 1U : 0U;
      }
    };
    keep(0, equals_end, kth);
    keep(equals_end, size_, kth + 1);
    size_ = kept;
    return kth;
  }

  /// The smallest key held, of size() >= 1.
  [[nodiscard]] Key<Value> smallest() const {
    Key<Value> smallest = magnitude_key(values_[0]);
    for (std::size_t i = 1; i < size_; ++i) {
      smallest = std::min(smallest, magnitude_key(values_[i]));
    }
    return smallest;
  }

  /// Writes the candidates, ascending by index; returns their number.
  std::size_t write(EntriesOut<Value, Index> out) const {
    std::copy_n(indices_, size_, out.indices);
    std::copy_n(values_, size_, out.values);
    return size_;
  }

 private:
  /// The lowest bound. A larger bound avoids dropping candidates after every few entries.
  static constexpr std::size_t kFewest = 32'768;

  SegmentCursor<const T> cursor_;
  const Value* residual_;
  std::size_t keep_;
  std::size_t bound_;     // bound on the number of candidates
  std::size_t capacity_;  // the bound plus one stretch
  Index* indices_;
  Value* values_;
  GrowingBuffer& keys_;
  std::size_t size_ = 0;
  Key<Value> first_threshold_ = 1;
  Key<Value> threshold_ = 1;
};

}  // namespace gtopk::sparse
