// gtopk-info --doctor: which ranks test which, and when. This is a pure function of which ranks
// share hosts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gtopk::programs::info {

struct Host {
  std::string machine;               ///< the machine's name according to the kernel
  std::vector<std::uint32_t> ranks;  ///< ascending
};

/// Ranks with equal names share a host; hosts are in the order of their lowest ranks. `machines` is
/// indexed by rank; an absent rank has an empty name and is on no host.
[[nodiscard]] std::vector<Host> hosts_of(const std::vector<std::string>& names,
                                         const std::vector<std::string>& machines);

/// Two ranks that represent two hosts, or one host with itself.
struct Pair {
  std::uint32_t from_host = 0;
  std::uint32_t to_host = 0;
  std::uint32_t from = 0;  ///< rank
  std::uint32_t to = 0;    ///< rank
};

/// Pairs of one round have no host in common, so they can be tested at once.
using Round = std::vector<Pair>;

/// The first round tests each host of two or more ranks with itself, by its two lowest ranks. Later
/// rounds test every two hosts once, by the lowest rank of each, from the lower host to the higher.
[[nodiscard]] std::vector<Round> rounds_of(const std::vector<Host>& hosts);

}  // namespace gtopk::programs::info
