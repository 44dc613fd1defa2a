// Sparse, device: selects by a rule: the launches that a selection takes, and their workspace.
#pragma once

#include <cstdint>

#include "gtopk/selection_rule.hpp"
#include "src/gtopk/device/approximate.hpp"
#include "src/gtopk/device/arena.hpp"
#include "src/gtopk/device/select.hpp"
#include "src/gtopk/device/select_blocks.hpp"
#include "src/gtopk/device/threshold.hpp"

namespace gtopk::sparse::device {

/// The workspace of a selection, in the device's memory. Only the part for the rule's kind is set.
template <class Value>
struct RuleWorkspace {
  SelectionWorkspace<Value> exact;
  SearchWorkspace<Value> search;
  BlockCuts<Value> blocks;

  static RuleWorkspace in(Arena& arena, std::uint64_t tiles, std::uint64_t d,
                          const SelectionRule& rule) {
    RuleWorkspace workspace;
    switch (rule.kind) {
      case SelectionRule::Kind::kExact:
        workspace.exact = SelectionWorkspace<Value>::in(
            arena, tiles, SelectionWorkspace<Value>::candidates_of(d, rule.k));
        break;
      case SelectionRule::Kind::kNormal:
      case SelectionRule::Kind::kSample:
      case SelectionRule::Kind::kThreshold:
        workspace.search = SearchWorkspace<Value>::in(
            arena, tiles, d, rule, SelectionWorkspace<Value>::candidates_of(d, rule.most));
        break;
      case SelectionRule::Kind::kBlocks:
        workspace.blocks = BlockCuts<Value>::in(arena, grid_of(d, rule).count());
        break;
    }
    return workspace;
  }
};

/// Launches a whole selection. `kept` has capacity for rule.most entries. `state` and `next` are
/// the same as in select_from_state(), and are used only for that kind.
template <class T, class Executor>
void select_by(const SelectionRule& rule, Executor& executor, const Pieces<T>& acc, std::uint64_t d,
               const RuleWorkspace<Accumulation<T>>& workspace,
               EntriesOut<Accumulation<T>, Index> kept, Report* report,
               const double* state = nullptr, double* next = nullptr) {
  switch (rule.kind) {
    case SelectionRule::Kind::kExact:
      return select<T>(executor, acc, d, rule.k, workspace.exact, kept, report);
    case SelectionRule::Kind::kNormal:
    case SelectionRule::Kind::kSample:
      return select_approximately<T>(executor, acc, d, rule, workspace.search, kept, report);
    case SelectionRule::Kind::kThreshold:
      return select_from_state<T>(executor, acc, d, rule, workspace.search, kept, report, state,
                                  next);
    case SelectionRule::Kind::kBlocks:
      return select_blocks<T>(executor, acc, grid_of(d, rule), workspace.blocks, kept, report);
  }
}

}  // namespace gtopk::sparse::device
