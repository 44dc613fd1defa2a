// Collectives: from which rank a rank of a broadcast gets the data, and to which ranks it passes
// the data on. A binomial tree or a chain leads from the root through one rank of each host, and a
// binomial tree from there through the ranks of the host: each host's link carries the data in
// once. In a chain it also carries the data out once, while the root of a tree sends the data
// log2(hosts) times; but in a chain the last host waits for all hosts before it. This is pure
// arithmetic.
//
// In a binomial tree of n places the parent of a place is the place without its lowest set bit; its
// children add lower bits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "src/collectives/all_reduce.hpp"
#include "src/engine/host_map.hpp"

namespace gtopk::collectives {

/// The bytes of a piece that is passed on: an eighth of the data, within bounds. On a slow link a
/// rank sends to all of its children at once, and each passes on what it already has.
[[nodiscard]] constexpr std::size_t broadcast_piece(std::size_t bytes) {
  constexpr std::size_t kLeast = 16384;
  return std::min(bytes, std::clamp((bytes / 8 + 63) / 64 * 64, kLeast, kPieceBytes));
}

/// How a broadcast goes from host to host.
enum class BetweenHosts : std::uint8_t { kTree, kChain };

class BroadcastTree {
 public:
  BroadcastTree(const engine::HostMap& hosts, std::uint32_t root, std::uint32_t rank,
                BetweenHosts between) {
    const std::uint32_t root_host = hosts.host_of(root);
    const std::uint32_t host = hosts.host_of(rank);
    // Hosts are counted from the root's host, and the ranks of a host from the root or its lowest
    // rank.
    const std::uint32_t host_place = (host + hosts.hosts() - root_host) % hosts.hosts();
    const auto first_of = [&](std::uint32_t place) {
      const std::uint32_t at = (place + root_host) % hosts.hosts();
      return at == root_host ? root : hosts.leader(at);
    };
    const std::span<const std::uint32_t> members = hosts.ranks_of(host);
    const auto count = static_cast<std::uint32_t>(members.size());
    const auto index_of = [&](std::uint32_t member) {
      return static_cast<std::uint32_t>(std::ranges::lower_bound(members, member) -
                                        members.begin());
    };
    const std::uint32_t first = index_of(first_of(host_place));
    const std::uint32_t place = (index_of(rank) + count - first) % count;
    const auto member_at = [&](std::uint32_t at) { return members[(at + first) % count]; };

    if (place != 0) {
      parent_ = member_at(place & (place - 1));
    } else if (between == BetweenHosts::kChain) {
      if (host_place != 0) {
        parent_ = first_of(host_place - 1);
      }
      if (host_place + 1 < hosts.hosts()) {
        children_.at(count_++) = first_of(host_place + 1);
      }
    } else {
      if (host_place != 0) {
        parent_ = first_of(host_place & (host_place - 1));
      }
      add_children(host_place, hosts.hosts(), first_of);
    }
    add_children(place, count, member_at);
  }

  /// The rank that sends the data to this one; empty for the root.
  [[nodiscard]] std::optional<std::uint32_t> parent() const { return parent_; }
  /// The ranks to which this one sends, in sending order: those with the most ranks behind them
  /// come first.
  [[nodiscard]] std::span<const std::uint32_t> children() const {
    return std::span(children_).first(count_);
  }

 private:
  template <class RankAt>
  void add_children(std::uint32_t place, std::uint32_t places, RankAt rank_at) {
    const std::uint32_t lowest = place == 0 ? std::bit_ceil(places) : (place & (~place + 1));
    for (std::uint32_t bit = lowest / 2; bit > 0; bit /= 2) {
      if (place + bit < places) {
        children_.at(count_++) = rank_at(place + bit);
      }
    }
  }

  std::optional<std::uint32_t> parent_;
  std::array<std::uint32_t, 64> children_{};  // at most 32 in each of the two trees
  std::size_t count_ = 0;
};

}  // namespace gtopk::collectives
