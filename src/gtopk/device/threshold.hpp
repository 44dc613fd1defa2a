// Sparse, device: the selection `threshold` of a step that has a state (select/threshold.cpp):
// it uses the last step's threshold, corrected as in approximate.hpp, or finds the first k if that
// does not suffice, and leaves a state for the next step.
#pragma once

#include <cstdint>
#include <limits>

#include "gtopk/selection_rule.hpp"
#include "gtopk/types.hpp"
#include "src/gtopk/device/approximate.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/device/find_key.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/gtopk/device/refine.hpp"
#include "src/gtopk/device/select.hpp"
#include "src/gtopk/select/correction.hpp"

namespace gtopk::sparse::device {

/// Begins with what the last step has left, if that is a threshold. Runs as one block.
struct BeginFromState {
  struct Shared {};

  const double* state;
  int times;
  Search* search;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {
        Search first;
        first.threshold = state[0];
        first.left = times;
        const bool usable =
            first.threshold > 0 && first.threshold <= std::numeric_limits<double>::max();
        first.done = usable ? 0 : 1;  // 1: nothing is counted
        *search = first;
      }
    });
  }
};

/// Keeps what reaches the threshold if the count is within bounds, else the first k of all. Runs as
/// one block.
template <class Value>
struct SettleWithin {
  struct Shared {};

  const Search* search;
  Correction correction;
  std::uint64_t k;
  Cutoff<Value>* cutoff;

  [[nodiscard]] GTOPK_HOST_DEVICE static bool within(const Search& search,
                                                     const Correction& correction,
                                                     std::uint64_t k) {
    return !correction.too_few(search.count, k) && !correction.too_many(search.count, k);
  }

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      if (thread != 0) {
        return;
      }
      Cutoff<Value> cut;
      cut.finite = search->finite;
      if (search->finite != 0) {
        cut.route = Route::kAll;
        if (within(*search, correction, k)) {
          cut.key = key_reaching<Value>(search->threshold) - 1;  // larger keys are kept
        } else {
          cut.left = k;
          cut.searching = 1;
        }
      }
      *cutoff = cut;
    });
  }
};

/// Writes the state that `threshold` leaves for the next step, once the cut is known: the
/// threshold, or the smallest magnitude of an exact selection of k entries. Runs as one block.
template <class Value>
struct LeaveState {
  struct Shared {};

  const Search* search;
  Correction correction;
  std::uint64_t k;
  const Cutoff<Value>* cutoff;
  double* next;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    constexpr unsigned kNumbers = sizeof(SelectorState) / sizeof(double);
    block.each([&](unsigned thread) {
      if (thread >= kNumbers) {
        return;
      }
      const bool within = SettleWithin<Value>::within(*search, correction, k);
      // The k-th key is 0 if there are fewer than k nonzeros.
      const double threshold = within ? search->threshold : magnitude_of<Value>(cutoff->key);
      next[thread] = thread == 0 ? threshold : 0;
    });
  }
};

/// Launches a whole selection of kind kThreshold. `kept` has capacity for rule.most entries.
/// `state` is what the last step has left, and `next` what this one leaves, as the numbers of a
/// SelectorState.
template <class T, class Executor>
void select_from_state(Executor& executor, const Pieces<T>& acc, const SelectionRule& rule,
                       const SearchWorkspace<Accumulation<T>>& workspace,
                       EntriesOut<Accumulation<T>, Index> kept, Report* report, const double* state,
                       double* next) {
  using Value = Accumulation<T>;
  const Correction correction = kThresholdCorrection;
  const KeyWorkspace<Value>& key = workspace.refine.key;
  executor.launch(1, InTurn{BeginSearch<Value>{key, {}},
                            BeginFromState{state, correction.times, workspace.search}});
  correct_threshold(executor, acc, rule.k, correction, workspace,
                    SettleWithin<Value>{workspace.search, correction, rule.k, key.cutoff});
  refine(executor, AccSource<T>{acc}, workspace.refine, report, kept, EntriesOut<Value, Index>{});
  executor.launch(1, LeaveState<Value>{workspace.search, correction, rule.k, key.cutoff, next});
}

}  // namespace gtopk::sparse::device
