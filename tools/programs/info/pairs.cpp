#include "tools/programs/info/pairs.hpp"

#include <algorithm>
#include <utility>

namespace gtopk::programs::info {

std::vector<Host> hosts_of(const std::vector<std::string>& names,
                           const std::vector<std::string>& machines) {
  std::vector<Host> hosts;
  std::vector<std::string> seen;
  for (std::uint32_t rank = 0; rank < names.size(); ++rank) {
    if (names[rank].empty()) {
      continue;
    }
    const auto known = std::find(seen.begin(), seen.end(), names[rank]);
    const auto number = static_cast<std::size_t>(known - seen.begin());
    if (known == seen.end()) {
      seen.push_back(names[rank]);
      hosts.push_back({.machine = machines[rank], .ranks = {}});
    }
    hosts[number].ranks.push_back(rank);
  }
  return hosts;
}

std::vector<Round> rounds_of(const std::vector<Host>& hosts) {
  std::vector<Round> rounds;
  Round inside;
  for (std::uint32_t host = 0; host < hosts.size(); ++host) {
    const std::vector<std::uint32_t>& ranks = hosts[host].ranks;
    if (ranks.size() > 1) {
      inside.push_back({host, host, ranks[0], ranks[1]});
    }
  }
  if (!inside.empty()) {
    rounds.push_back(std::move(inside));
  }
  // All other hosts sit in a circle around the last one; turning the circle by one seat gives the
  // next round. With an odd number of hosts, the one without a partner pauses.
  const std::size_t seats = hosts.size() + hosts.size() % 2;
  for (std::size_t turn = 0; turn + 1 < seats; ++turn) {
    Round round;
    for (std::size_t seat = 0; seat < seats / 2; ++seat) {
      std::size_t one = (turn + seat) % (seats - 1);
      std::size_t other = seat == 0 ? seats - 1 : (turn + seats - 1 - seat) % (seats - 1);
      if (one > other) {
        std::swap(one, other);
      }
      if (other >= hosts.size()) {
        continue;
      }
      round.push_back({static_cast<std::uint32_t>(one), static_cast<std::uint32_t>(other),
                       hosts[one].ranks.front(), hosts[other].ranks.front()});
    }
    if (!round.empty()) {
      rounds.push_back(std::move(round));
    }
  }
  return rounds;
}

}  // namespace gtopk::programs::info
