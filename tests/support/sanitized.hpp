// Test support: whether this program runs under a sanitizer, which makes it several times slower.
#pragma once

namespace gtopk::support {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace gtopk::support
