// Sparse, algorithms room: how a long list is cut into parts, one for each connection to its
// receiver. All parts but the last are as long as the first, which begins with the header and says
// how many there are. So a receiver knows from it where each of the others belongs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/transport/base/transport.hpp"

namespace gtopk::sparse {

/// Longer messages are acknowledged, and go over all connections. For shorter ones, which alpha
/// dominates, an acknowledgement would double the cost.
inline constexpr std::size_t kAcknowledgedBytes = 16384;

inline constexpr std::uint32_t kMostParts = transport::kMostConnections;

/// The number of parts of a message of this many bytes over this many connections.
[[nodiscard]] constexpr std::uint32_t parts_of(std::size_t bytes, std::uint32_t connections) {
  return bytes <= kAcknowledgedBytes ? 1 : std::clamp(connections, 1U, kMostParts);
}

/// Bytes of each part but the last: a multiple of 64. No part is empty.
[[nodiscard]] constexpr std::size_t part_bytes(std::size_t bytes, std::uint32_t parts) {
  constexpr std::size_t kMultiple = 64;
  const std::size_t part = (bytes + parts - 1) / parts;
  return parts == 1 ? bytes : (part + kMultiple - 1) / kMultiple * kMultiple;
}
static_assert((kMostParts - 1) * part_bytes(kAcknowledgedBytes + 1, kMostParts) <
              kAcknowledgedBytes + 1);

/// The bytes of a part; the rest for the last one; empty if nothing is left for it.
template <class Byte>
[[nodiscard]] std::span<Byte> part_at(std::span<Byte> whole, std::size_t part_bytes,
                                      std::uint32_t number) {
  const std::size_t begin = std::min(number * part_bytes, whole.size());
  return whole.subspan(begin, std::min(part_bytes, whole.size() - begin));
}

}  // namespace gtopk::sparse
