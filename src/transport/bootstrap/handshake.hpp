// Bootstrap: how both ends of a connection to the rendezvous prove that they know the job's secret,
// before anything else is read:
//   client  magic 4 | c: a nonce of 16 bytes
//   server  s: a nonce of 16 bytes | HMAC(secret, "server" c s)
//   client  HMAC(secret, "client" c s)
// Nothing can be replayed, because both nonces are fresh. The bytes that follow are neither
// encrypted nor signed. This module does not use sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gtopk::bootstrap {

inline constexpr std::size_t kNonceBytes = 16;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kChallengeBytes = kNonceBytes + kProofBytes;

/// Returns cryptographically random bytes.
[[nodiscard]] std::string draw_secret(std::size_t bytes);

class ClientHandshake {
 public:
  explicit ClientHandshake(std::string secret);
  /// Returns the first message to send.
  [[nodiscard]] std::string hello() const;
  /// Returns the reply to the server's kChallengeBytes, or nullopt if the server does not know the
  /// secret.
  [[nodiscard]] std::optional<std::string> reply_to(std::string_view challenge) const;

 private:
  std::string secret_;
  std::string nonce_;
};

class ServerHandshake {
 public:
  enum class Admission : std::uint8_t { kWaiting, kRefused, kAdmitted };

  explicit ServerHandshake(std::string secret);
  /// Consumes complete parts from the front of `input`; sets `answer` to the bytes that must be
  /// sent, if any.
  [[nodiscard]] Admission receive(std::string& input, std::string& answer);

 private:
  std::string secret_;
  std::string expected_;  ///< the client's proof; empty before its hello
};

}  // namespace gtopk::bootstrap
