// Sparse, algorithms: the phase between select and commit: an algorithm's walk from this rank's
// list to the result, once its turn has come.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/list_exchange.hpp"
#include "src/gtopk/algorithms/resolved_call.hpp"

namespace gtopk::sparse {

/// Operations with long lists exchange one after the other; short lists overtake them. The place in
/// line is taken before anything is awaited, here or by the caller that passes it in, and released
/// when the last list has left.
class ExchangePhase {
 public:
  ExchangePhase(engine::GroupView& group, const ResolvedCall& resolved,
                std::unique_ptr<engine::Turn> turn)
      : resolved_(resolved),
        exchange_(group, resolved.lists, scratch_of_this_thread()),
        handed_in_(std::move(turn)) {
    if (!exchange_.long_lists()) {
      handed_in_.reset();
    } else if (!handed_in_) {
      turn_.emplace(group);
    }
  }

  [[nodiscard]] ListExchange& lists() { return exchange_; }

  engine::Task<List> run(List own) {
    if (turn_) {
      engine::Turn& mine = *turn_;
      co_await mine;
    }
    engine::Task<List> walking = resolved_.algorithm->walk(exchange_, own);
    const List result = co_await walking;
    co_await exchange_.departed();
    turn_.reset();
    handed_in_.reset();
    co_return result;
  }

 private:
  /// Returns scratch memory that is kept from call to call.
  static MergeScratch& scratch_of_this_thread() {
    static thread_local MergeScratch scratch;
    return scratch;
  }

  const ResolvedCall& resolved_;
  ListExchange exchange_;
  std::optional<engine::Turn> turn_;
  std::unique_ptr<engine::Turn> handed_in_;  // set if the caller already has the place
};

}  // namespace gtopk::sparse
