// Sparse, wire: keeps track of a list's entries while their values are rounded in place: which
// entries are left, and what each has lost. It does not know formats.
#pragma once

#include <cstddef>

#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/gtopk/wire/codec.hpp"

namespace gtopk::sparse {

template <class Value, class Index>
class Rounding {
 public:
  Rounding(EntriesOut<Value, Index> list, EntriesOut<Value, Index> lost, bool zeros_are_lost)
      : list_(list), lost_(lost), zeros_are_lost_(zeros_are_lost) {}

  /// Replaces entry i by `kept`; entries must come in order.
  void take(std::size_t i, Value kept) {
    const Index index = list_.indices[i];
    const Value rest = list_.values[i] - kept;
    rounded_.finite = rounded_.finite && is_finite_key<Value>(magnitude_key(kept));
    if (lost_.indices != nullptr && rest != 0 && (kept != 0 || zeros_are_lost_)) {
      lost_.indices[rounded_.lost] = index;
      lost_.values[rounded_.lost] = rest;
      ++rounded_.lost;
    }
    if (kept != 0) {
      list_.indices[rounded_.kept] = index;
      list_.values[rounded_.kept] = kept;
      ++rounded_.kept;
    }
  }

  [[nodiscard]] Rounded rounded() const { return rounded_; }

 private:
  EntriesOut<Value, Index> list_;
  EntriesOut<Value, Index> lost_;
  bool zeros_are_lost_;
  Rounded rounded_;
};

}  // namespace gtopk::sparse
