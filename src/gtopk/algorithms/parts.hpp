// Sparse, algorithms: how a long message is cut into parts, which the connections to its receiver
// carry as they become free. All parts but the last are as long as the first. So the receiver knows
// from the first part where each of the others belongs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gtopk::sparse {

/// Longer messages are acknowledged and go over all connections. For shorter ones, whose cost is
/// dominated by alpha, an acknowledgement would double the cost.
inline constexpr std::size_t kAcknowledgedBytes = 16384;

inline constexpr std::uint32_t kMostParts = 128;

/// The number of parts of a message of this many bytes over this many connections: one for each
/// connection, but more for a very long message, so that a slow connection carries fewer, and fewer
/// for a short one.
[[nodiscard]] constexpr std::uint32_t parts_of(std::size_t bytes, std::uint32_t connections) {
  constexpr std::size_t kLeast = 4096;
  constexpr std::size_t kMost = std::size_t{1} << 17U;
  if (bytes <= kAcknowledgedBytes || connections == 1) {
    return 1;
  }
  const std::size_t wanted = std::max<std::size_t>(connections, (bytes + kMost - 1) / kMost);
  return static_cast<std::uint32_t>(std::min({wanted, bytes / kLeast, std::size_t{kMostParts}}));
}

/// The bytes of each part except the last, a multiple of 64. No part is empty.
[[nodiscard]] constexpr std::size_t part_bytes(std::size_t bytes, std::uint32_t parts) {
  constexpr std::size_t kMultiple = 64;
  const std::size_t part = (bytes + parts - 1) / parts;
  return parts == 1 ? bytes : (part + kMultiple - 1) / kMultiple * kMultiple;
}

/// The bytes of a part. The last part gets the rest; a part is empty if nothing is left for it.
template <class Byte>
[[nodiscard]] std::span<Byte> part_at(std::span<Byte> whole, std::size_t part_bytes,
                                      std::uint32_t number) {
  const std::size_t begin = std::min(number * part_bytes, whole.size());
  return whole.subspan(begin, std::min(part_bytes, whole.size() - begin));
}

}  // namespace gtopk::sparse
