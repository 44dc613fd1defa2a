// Bootstrap: SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it, for the proofs at the rendezvous: a
// few hundred bytes per connection. Our own, tested against the published vectors, as the only
// alternative on every machine is libcrypto, of which Python and torch bring their own versions.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace gtopk::bootstrap {

inline constexpr std::size_t kDigestBytes = 32;

[[nodiscard]] std::string sha256(std::string_view message);
[[nodiscard]] std::string hmac_sha256(std::string_view key, std::string_view message);

/// Its duration does not depend on where the two differ, so that timing leaks nothing of a proof.
[[nodiscard]] bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace gtopk::bootstrap
