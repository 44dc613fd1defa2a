// Test support: bytes changed as by a bad network or a stranger. The seed replays it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "tests/support/cases.hpp"

namespace gtopk::support {

/// A few of: flipped bits, bytes set to extremes, ranges copied, removed or inserted.
inline void mutate(reference::Random& random, std::vector<std::byte>& bytes) {
  const std::uint64_t changes = 1 + random.below(4);
  for (std::uint64_t change = 0; change < changes; ++change) {
    if (bytes.empty()) {
      bytes.resize(1 + random.below(100));
      continue;
    }
    const std::uint64_t at = random.below(bytes.size());
    const std::uint64_t length = 1 + random.below(std::min<std::uint64_t>(bytes.size() - at, 16));
    switch (random.below(7)) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1U << random.below(8));
        break;
      case 1:
        bytes[at] = static_cast<std::byte>(random.below(256));
        break;
      case 2:
        std::memset(bytes.data() + at, 0xFF, length);
        break;
      case 3:
        std::memset(bytes.data() + at, 0, length);
        break;
      case 4:
        std::memmove(bytes.data() + random.below(bytes.size() - length + 1), bytes.data() + at,
                     length);
        break;
      case 5:
        bytes.resize(at);
        break;
      default:
        bytes.insert(bytes.end(), length * 9, static_cast<std::byte>(random.below(256)));
        break;
    }
  }
}

}  // namespace gtopk::support
