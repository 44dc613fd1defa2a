// Collectives: every rank sends to every other rank at once, behind headers. A rank that has heard
// from all others knows that all have made the same call. A message that is sent log2 P times along
// the tree is sent once here, and a rank sends each other rank only what that one needs; but it has
// P-1 messages to send and to receive. This suits small amounts, because all bytes are copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gtopk/buffer.hpp"
#include "gtopk/types.hpp"
#include "src/collectives/tree.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::collectives {

/// The step of the message from one rank to another: if the tree has a message between the two, its
/// step, so that ranks which called something else hear of it.
[[nodiscard]] std::uint32_t direct_step(const Tree& tree, std::uint32_t from, std::uint32_t to);

/// Sends `bytes` bytes of each rank to every other rank, which ignores them. It uses the steps of
/// the tree.
engine::Task<void> swap_directly(engine::GroupView& group, std::size_t bytes,
                                 std::uint32_t first_step);

/// Does the same as reduce_over_ranks, bit for bit as along the tree: each rank sums a part
/// (chunk_begin) and sends it to all. `data` is written when everything has arrived. AVG only adds.
/// It uses the steps of the tree and one more.
engine::Task<void> reduce_directly(engine::GroupView& group, void* data, std::uint64_t d,
                                   DataType type, ReduceOp op, double factor);

/// Does the first half of that: the sum of this rank's part becomes `output`, which may be the part
/// itself.
engine::Task<void> reduce_scatter_directly(engine::GroupView& group, std::span<const Segment> parts,
                                           void* output, DataType type, ReduceOp op, double factor);

/// `buffers` are for the ranks' bytes, in rank order, of agreed sizes, in host memory; this rank's
/// own holds its bytes. They are written when everything has arrived.
engine::Task<void> gather_directly(engine::GroupView& group, std::span<const Bytes> buffers);

}  // namespace gtopk::collectives
