// Collectives: the ring that moves large data with the least traffic, 2 d (P-1)/P elements per
// rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/group_view.hpp"
#include "engine/task.hpp"
#include "gtopk/types.hpp"

namespace gtopk::collectives {

/// In place; P >= 2; all ranks have agreed on d, type and op.
engine::Task<void> ring_all_reduce(engine::GroupView& group, void* data, std::uint64_t d,
                                   DataType type, ReduceOp op);

/// Throws Error{kMismatch} when a message of agreed size has another.
void require_length(std::size_t received, std::size_t expected, const engine::GroupView& group,
                    std::uint32_t from);

}  // namespace gtopk::collectives
