// Collectives: the dense all-reduce. Its order of summation depends on P, d and the element size
// alone.
//
// Up to kRecursiveDoublingBytes: recursive doubling along the tree, the header in front of the
// data; the tensor is written only when every round has succeeded. Larger: all ranks agree first,
// then a ring in pieces (Patarasuk and Yuan 2009): chunk c = [c d/P, (c+1) d/P) starts with rank
// c+1's values, gathers rank c+2's, ..., ends at rank c, and goes round once more.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/signature.hpp"
#include "engine/group_view.hpp"
#include "engine/task.hpp"

namespace gtopk::collectives {

inline constexpr std::size_t kRecursiveDoublingBytes = 65536;
/// A chunk travels in pieces of at most this size, so that adding one overlaps with receiving the
/// next. Half as much is slower over shared memory, and more than twice as much would not fit into
/// one TCP segment of UCX (docs/ucx.md).
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 17U;

/// First element of chunk c of d elements cut for P ranks; c = P gives d.
[[nodiscard]] constexpr std::uint64_t chunk_begin(std::uint64_t d, std::uint32_t ranks,
                                                  std::uint32_t chunk) {
  // floor(c d / P) without overflow.
  return (d / ranks) * chunk + (d % ranks) * chunk / ranks;
}

/// In place over data[0..d) of `signature.dtype`; AVG divides at the end. `signature` is what all
/// ranks must agree on. `type` is the type that travels; for a plain all_reduce it is
/// signature.dtype. Throws Error{kMismatch, kPeerFailed, kTimeout, kAborted}.
engine::Task<void> all_reduce(engine::GroupView& group, const Signature& signature, void* data,
                              std::uint64_t d, DataType type, ReduceOp op);

}  // namespace gtopk::collectives
