// Test support: the messages and bytes of each rank in a large dense reduction, as
// docs/algorithms.md gives them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <ostream>
#include <vector>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/host_rings.hpp"
#include "src/engine/host_map.hpp"

namespace gtopk::test {

struct Counts {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  bool operator==(const Counts&) const = default;
};
// GoogleTest finds it by this name.
// NOLINTNEXTLINE(readability-identifier-naming)
inline void PrintTo(const Counts& counts, std::ostream* out) {
  *out << counts.messages << " messages of " << counts.bytes << " bytes";
}

struct Expected {
  Counts sent;
  Counts received;
};

/// What travels round a ring, one part for each of its ranks: in how many messages a part goes
/// round while sums are made, and again when they are done; 0: not at all.
struct RingTraffic {
  std::vector<std::uint32_t> ranks;
  std::vector<std::uint64_t> bytes;
  std::uint64_t summing;
  std::uint64_t done;
};

inline void add_ring(std::vector<Expected>& expected, const RingTraffic& ring) {
  const std::size_t size = ring.ranks.size();
  const std::uint64_t all = std::accumulate(ring.bytes.begin(), ring.bytes.end(), 0ULL);
  for (std::size_t place = 0; place < size; ++place) {
    Expected& rank = expected[ring.ranks[place]];
    const auto part = [&](std::size_t at) { return ring.bytes[at % size]; };
    for (Counts* const counts : {&rank.sent, &rank.received}) {
      counts->messages += (size - 1) * (ring.summing + ring.done);
    }
    if (ring.summing != 0) {  // all parts but the sender's own
      rank.sent.bytes += all - part(place);
      rank.received.bytes += all - part(place + size - 1);
    }
    if (ring.done != 0) {  // all but the receiver's own
      rank.sent.bytes += all - part(place + 1);
      rank.received.bytes += all - part(place);
    }
  }
}

/// Adds what the rings of an all-reduce of d elements carry.
inline void add_rings(std::vector<Expected>& expected, std::uint64_t d, std::uint64_t element,
                      const engine::HostMap& map) {
  const auto ranks = static_cast<std::uint32_t>(expected.size());
  const auto chunk = [&](std::uint32_t rank) {
    return ((rank + 1) * d / ranks - rank * d / ranks) * element;
  };
  const std::uint64_t longest = (d + ranks - 1) / ranks * element;
  const std::uint64_t pieces = std::max<std::uint64_t>(
      1, (longest + collectives::kPieceBytes - 1) / collectives::kPieceBytes);
  const std::uint32_t each = collectives::HostRings::two_levels(map);
  if (each == 0) {
    RingTraffic ring{.ranks = {}, .bytes = {}, .summing = pieces, .done = pieces};
    for (std::uint32_t host = 0; host < map.hosts(); ++host) {
      for (const std::uint32_t rank : map.ranks_of(host)) {
        ring.ranks.push_back(rank);
        ring.bytes.push_back(chunk(rank));
      }
    }
    add_ring(expected, ring);
    return;
  }
  std::vector<std::uint64_t> of_places(each);
  for (std::uint32_t place = 0; place < each; ++place) {
    RingTraffic across{.ranks = {}, .bytes = {}, .summing = pieces, .done = pieces};
    for (std::uint32_t host = 0; host < map.hosts(); ++host) {
      const std::uint32_t rank = map.ranks_of(host)[place];
      across.ranks.push_back(rank);
      across.bytes.push_back(chunk(rank));
      of_places[place] += chunk(rank);
    }
    add_ring(expected, across);
  }
  for (std::uint32_t host = 0; host < map.hosts(); ++host) {
    const auto on = map.ranks_of(host);
    // A part is the chunks of as many ranks as there are hosts.
    add_ring(expected, {.ranks = {on.begin(), on.end()},
                        .bytes = of_places,
                        .summing = map.hosts() * pieces,
                        .done = map.hosts()});
  }
}

}  // namespace gtopk::test
