// Reference: the hosts on which ranks lie where nothing else is said, by their names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gtopk::support {

/// Where nothing else is said: one host of 2 ranks, then several, some of one rank, in no order.
/// P = 4: 0, 0, 1, 0; P = 9: 0, 0, 1, 0, 2, 2, 1, 3, 3.
[[nodiscard]] inline std::vector<std::string> usual_hosts(std::uint32_t ranks) {
  static constexpr std::uint32_t kHosts[] = {0, 0, 1, 0, 2, 2, 1, 3, 3, 2, 0, 4, 3, 1, 4, 0};
  std::vector<std::string> names;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    names.push_back("host " + std::to_string(kHosts[rank % 16]));
  }
  return names;
}

/// Blocks of so many neighbouring ranks, the last one perhaps smaller.
[[nodiscard]] inline std::vector<std::string> hosts_of(std::uint32_t ranks, std::uint32_t each) {
  std::vector<std::string> names;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    names.push_back("host " + std::to_string(rank / each));
  }
  return names;
}

}  // namespace gtopk::support
