// Tests, support: names of hosts, for tests in which it matters who shares one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gtopk::support {

/// The host of each rank, by a letter for each rank: "aab" are two ranks on one host and one on
/// another.
inline std::vector<std::string> hosts_of(std::string_view letters) {
  std::vector<std::string> names;
  for (const char letter : letters) {
    names.emplace_back(1, letter);
  }
  return names;
}

}  // namespace gtopk::support
