// Collectives: one rank's bytes to all.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/signature.hpp"
#include "engine/group_view.hpp"
#include "engine/task.hpp"

namespace gtopk::collectives {

/// All ranks agree, then a binomial tree from signature.root, in pieces that are passed on as they
/// arrive. In place; at most log2 P + 1 sends of the data per rank, P-1 over all. Throws
/// Error{kMismatch, kPeerFailed, ...}.
engine::Task<void> broadcast(engine::GroupView& group, const Signature& signature,
                             std::span<std::byte> data);

}  // namespace gtopk::collectives
