// Collectives: if sizes may differ for each pair of ranks, ranks agree on them before any data
// moves.
#pragma once

#include <cstdint>
#include <span>

#include "src/collectives/tree.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::collectives {

/// `sent` and `expected` are the bytes that this rank sends to each rank and expects from it.
/// Completes when every rank has made the same call and every pair agrees, so it is also a barrier.
/// It takes the messages of agree(), each with one more number: the sum over all pairs of (sent -
/// expected) h, with h a hash of the pair. It is 0 if all agree, and otherwise nonzero except with
/// probability 2^-64. Only if it is nonzero do ranks tell each other what they send; every rank
/// then throws an Error{kMismatch} that names both sides. It uses the steps below
/// step_after_lengths().
engine::Task<void> agree_on_lengths(engine::GroupView& group, std::span<const std::uint64_t> sent,
                                    std::span<const std::uint64_t> expected);

/// The first step that is free for later messages. Receives are posted before the agreement: ranks
/// leave it at different times, and a message that arrives early at a rank that has posted nothing
/// is held in the transport's memory and copied once more.
[[nodiscard]] constexpr std::uint32_t step_after_lengths(std::uint32_t ranks) {
  return 2 * Tree(ranks).end_step() + 1;
}

}  // namespace gtopk::collectives
