// Collectives: the dense all-reduce. Its order of summation depends only on P, d, the element size
// and, for large ones, the host map.
//
// Up to kRecursiveDoublingBytes, it uses recursive doubling along the tree, with the header in
// front of the data, or goes directly with the same bits (direct.hpp); the tensor is written only
// when every message has arrived. For larger sizes, all ranks agree first, and then use rings in
// pieces (Patarasuk and Yuan 2009), inside hosts and across them (by_hosts.hpp); chunk r = [r d/P,
// (r+1) d/P) is rank r's part.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/types.hpp"
#include "src/collectives/tree.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::collectives {

inline constexpr std::size_t kRecursiveDoublingBytes = 65536;
/// A chunk is sent in pieces of at most this size, so that adding one piece overlaps with receiving
/// the next. Half this size is slower over shared memory, and more than twice this size would not
/// fit into one TCP segment of UCX (docs/ucx.md).
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 17U;

/// The first element of chunk c, if d elements are cut for P ranks; c = P gives d.
[[nodiscard]] constexpr std::uint64_t chunk_begin(std::uint64_t d, std::uint32_t ranks,
                                                  std::uint32_t chunk) {
  // This is floor(c d / P) without overflow.
  return (d / ranks) * chunk + (d % ranks) * chunk / ranks;
}

/// The body of an all-reduce for any collective, along the tree or the rings. It works in place
/// over data[0..d) of `type`; AVG divides at the end. `first_step` is the first step of its
/// messages, for a collective that reduces more than once. For PREMUL_SUM, this rank's data is
/// first multiplied by `factor`. Throws Error{kMismatch, kPeerFailed, kTimeout, kAborted}.
engine::Task<void> reduce_over_ranks(engine::GroupView& group, void* data, std::uint64_t d,
                                     DataType type, ReduceOp op, std::uint32_t first_step = 0,
                                     double factor = 1);

/// Does the same with the same bits; if d is small, by the quicker of two paths (dense_paths.hpp).
/// It must be the first thing that a collective does.
engine::Task<void> reduce_by_the_quicker_path(engine::GroupView& group, void* data, std::uint64_t d,
                                              DataType type, ReduceOp op, double factor);

/// The most steps of one reduction: the tree's, then the ring's.
[[nodiscard]] constexpr std::uint32_t reduction_steps(std::uint32_t ranks) {
  return Tree(ranks).end_step() + 2 * (ranks - 1);
}

/// Completes when every rank of the group has made the same call, so it is also a barrier. Each
/// rank sends log2 p messages (plus the fold), each a header with these flags, in the steps of the
/// tree. `capacity` is the number of bytes that ranks on another path may send behind a header, so
/// that they can be read. Throws Error{kMismatch}.
engine::Task<void> agree(engine::GroupView& group, std::uint32_t first_step = 0,
                         std::uint16_t flags = 0, std::size_t capacity = 0);

}  // namespace gtopk::collectives
