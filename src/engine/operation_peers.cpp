// Engine: which ranks an operation waits for, what it asks them, and what follows if one has left
// or turns out to be alive.
#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "src/engine/engine.hpp"
#include "src/engine/group.hpp"
#include "src/engine/operation.hpp"

namespace gtopk::engine {

std::vector<std::uint32_t> Operation::waits_for(bool sends) const {
  std::vector<std::uint32_t> ranks;
  if (in_line_for && !sends) {
    ranks.push_back(*in_line_for);
  }
  for_each_slot([&](const MessageSlot& slot) {
    if ((slot.request.pending() || slot.in_doubt) && slot.request.is_receive != sends) {
      ranks.push_back(slot.rank);
    }
  });
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::vector<std::uint32_t> Operation::waits_for() const {
  std::vector<std::uint32_t> ranks;
  std::ranges::set_union(waits_for(false), waits_for(true), std::back_inserter(ranks));
  return ranks;
}

void Operation::ask(std::uint32_t rank, std::coroutine_handle<> waiter) {
  answer_waiter_ = waiter;
  questions_.push_back(rank);
  engine_.has_question(*this);
}

void Operation::answer(std::uint32_t rank, const std::string& call) {
  if (answer_waiter_) {
    others_call = call;
    engine_.make_ready(std::exchange(answer_waiter_, {}), *this);
  }
  for_each_slot([&](MessageSlot& slot) {
    if (!slot.unexplained || slot.rank != rank) {
      return;
    }
    slot.unexplained = false;
    others_call = call;
    if (slot.waiter) {
      engine_.make_ready(std::exchange(slot.waiter, {}), *this);
    }
  });
}

std::string Operation::departure_of(std::uint32_t rank) const {
  const std::string& last_words = engine_.last_words(group_->peer(rank));
  return fmt::format("{} has left (it destroyed its process group or exited){}{}",
                     group_->member(rank),
                     last_words.empty() ? "" : "; its last error: ", last_words);
}

void Operation::peer_left(std::uint32_t rank) {
  for_each_slot([&](MessageSlot& slot) {
    if (slot.rank != rank) {
      return;
    }
    if (std::exchange(slot.in_doubt, false)) {
      slot.deserted = true;
      engine_.is_deserted(*this, rank);
    } else if (slot.request.is_receive) {
      withdraw_from_departed(slot);
    }
  });
}

void Operation::peer_lives(std::uint32_t rank) {
  for_each_slot([&](MessageSlot& slot) {
    if (slot.rank == rank && std::exchange(slot.in_doubt, false) && slot.waiter) {
      engine_.make_ready(std::exchange(slot.waiter, {}), *this);
    }
  });
}

/// A matched receive continues; an unmatched one ends as cancelled, perhaps at once.
void Operation::withdraw_from_departed(MessageSlot& slot) {
  if (!slot.request.pending()) {
    return;
  }
  slot.deserted = true;
  engine_.transport().cancel(slot.request);
}

}  // namespace gtopk::engine
