// Sparse, device: selects by a rule: the launches that this takes, and their workspace.
#pragma once

#include <cstdint>

#include "gtopk/selection_rule.hpp"
#include "src/gtopk/device/approximate.hpp"
#include "src/gtopk/device/room.hpp"
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

  static RuleWorkspace in(Room& memory, std::uint64_t tiles, std::uint64_t d,
                          const SelectionRule& rule) {
    RuleWorkspace room;
    switch (rule.kind) {
      case SelectionRule::Kind::kExact:
        room.exact = SelectionWorkspace<Value>::in(
            memory, tiles, SelectionWorkspace<Value>::candidates_of(d, rule.k));
        break;
      case SelectionRule::Kind::kNormal:
      case SelectionRule::Kind::kSample:
      case SelectionRule::Kind::kThreshold:
        room.search = SearchWorkspace<Value>::in(memory, tiles, d, rule);
        break;
      case SelectionRule::Kind::kBlocks:
        room.blocks = BlockCuts<Value>::in(memory, grid_of(d, rule).count());
        break;
    }
    return room;
  }
};

/// Launches a whole selection. `kept` has capacity for rule.most entries. `state` and `next` are
/// those of select_from_state(), for that kind only.
template <class T, class Executor>
void select_by(const SelectionRule& rule, Executor& executor, const Pieces<T>& acc, std::uint64_t d,
               const RuleWorkspace<Accumulation<T>>& room, EntriesOut<Accumulation<T>, Index> kept,
               Report* report, const double* state = nullptr, double* next = nullptr) {
  switch (rule.kind) {
    case SelectionRule::Kind::kExact:
      return select<T>(executor, acc, d, rule.k, room.exact, kept, report);
    case SelectionRule::Kind::kNormal:
    case SelectionRule::Kind::kSample:
      return select_approximately<T>(executor, acc, d, rule, room.search, kept, report);
    case SelectionRule::Kind::kThreshold:
      return select_from_state<T>(executor, acc, rule, room.search, kept, report, state, next);
    case SelectionRule::Kind::kBlocks:
      return select_blocks<T>(executor, acc, grid_of(d, rule), room.blocks, kept, report);
  }
}

}  // namespace gtopk::sparse::device
