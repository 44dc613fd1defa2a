// Collectives: all ranks make sure that they called the same thing before anything else moves.
#pragma once

#include "collectives/signature.hpp"
#include "engine/group_view.hpp"
#include "engine/task.hpp"

namespace gtopk::collectives {

/// Exchanges headers along the tree, by recursive doubling. A rank that comes through knows that
/// every rank of the group has called this with the same signature; so it is a barrier, too.
/// Messages per rank: log2 p (plus the fold), kHeaderBytes each. Steps: those of the tree.
/// Throws Error{kMismatch}.
engine::Task<void> agree(engine::GroupView& group, const Signature& signature);

}  // namespace gtopk::collectives
