// Collectives: every rank's bytes to all.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/signature.hpp"
#include "engine/group_view.hpp"
#include "engine/task.hpp"

namespace gtopk::collectives {

/// `rooms` has one room per rank, all of one size; the own room holds the contribution on entry.
/// All ranks agree, then P-1 steps round the ring. Throws Error{kMismatch, kPeerFailed, ...}.
engine::Task<void> all_gather(engine::GroupView& group, const Signature& signature,
                              std::span<const std::span<std::byte>> rooms);

}  // namespace gtopk::collectives
