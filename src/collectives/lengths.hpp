// Collectives: ranks that move data of sizes of their own agree on them before anything is moved.
#pragma once

#include <cstdint>
#include <span>

#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::collectives {

/// By rank: the bytes that this rank sends to it, and expects from it. A rank that comes through
/// knows that every rank has called the same, and that every two of them agree; so it is a barrier,
/// too. It takes the messages of agree(), each with a number in it: the sum over all pairs of (sent
/// - expected) h, where h is a hash of the pair, is 0 where all agree, and else but with
/// probability 2^-64. Only then do ranks tell each other what they send, and the group gets an
/// Error{kMismatch} that names both sides, on every rank. Steps: those of the tree.
engine::Task<void> agree_on_lengths(engine::GroupView& group, std::span<const std::uint64_t> sent,
                                    std::span<const std::uint64_t> expected);

}  // namespace gtopk::collectives
