// Test support: whether this program runs under a sanitizer, which makes it several times slower.
#pragma once

#include <cstdint>

namespace gtopk::support {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// How many seeds to run where so many are usual: with a sanitizer an eighth, as it looks at memory
/// and threads, and the values are those of the run without.
constexpr std::uint64_t seeds(std::uint64_t usual) { return kSanitized ? (usual + 7) / 8 : usual; }

}  // namespace gtopk::support
