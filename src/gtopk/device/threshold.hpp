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

/// Begins with the state of the last step or, if there is none, with a threshold that no element
/// reaches. Runs as one block.
struct BeginFromState {
  struct Shared {};

  const double* state;
  Search* search;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {
        *search = {state[0] > 0 ? state[0] : std::numeric_limits<double>::infinity()};
      }
    });
  }
};

/// Writes the state that `threshold` leaves for the next step, once the cut is known: the
/// threshold, or the smallest magnitude of an exact selection of k entries. Runs as one block.
template <class Value>
struct LeaveState {
  struct Shared {};

  const Search* search;
  const Cutoff<Value>* cutoff;
  double* next;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    constexpr unsigned kNumbers = sizeof(SelectorState) / sizeof(double);
    block.each([&](unsigned thread) {
      if (thread >= kNumbers) {
        return;
      }
      // The k-th key is 0 if there are fewer than k nonzeros.
      const double threshold =
          search->within != 0 ? search->threshold : magnitude_of<Value>(cutoff->key);
      next[thread] = thread == 0 ? threshold : 0;
    });
  }
};

/// Launches a whole selection of kind kThreshold. `kept` has capacity for rule.most entries.
/// `state` is the state that the last step has left, and `next` the state that this step leaves, as
/// the numbers of a SelectorState.
template <class T, class Executor>
void select_from_state(Executor& executor, const Pieces<T>& acc, std::uint64_t d,
                       const SelectionRule& rule, const SearchWorkspace<Accumulation<T>>& workspace,
                       EntriesOut<Accumulation<T>, Index> kept, Report* report, const double* state,
                       double* next) {
  using Value = Accumulation<T>;
  const Correction correction = kThresholdCorrection;
  const SelectionWorkspace<Value>& selection = workspace.selection;
  const KeyWorkspace<Value>& key = selection.refine.key;
  const Guess guess = guess_of(d, rule.most, selection);
  executor.launch(1, InTurn{BeginSearch<Value>{key, search_of<Value>(guess.rank)},
                            InTurn{BeginFromState{state, workspace.search},
                                   ListThresholds<Value>{workspace.search, correction,
                                                         workspace.list(correction)}}});
  find_candidates(executor, acc, guess, rule.most + 1, selection);
  select_reaching(executor, acc, rule, correction, workspace, kept, report,
                  LeaveState<Value>{workspace.search, key.cutoff, next});
}

}  // namespace gtopk::sparse::device
