// Bootstrap: how both ends of a connection to the rendezvous prove that they know the job's secret,
// before anything else is read:
//   client  magic 4 | c: a nonce of 16 bytes
//   server  s: a nonce of 16 bytes | HMAC(secret, "server" c s)
//   client  HMAC(secret, "client" c s)
// Nothing that was overheard serves a second time, as both nonces are drawn anew. What follows is
// neither encrypted nor signed. It knows no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gtopk::bootstrap {

inline constexpr std::size_t kNonceBytes = 16;
inline constexpr std::size_t kChallengeBytes = kNonceBytes + 32;

/// Bytes that nobody can guess.
[[nodiscard]] std::string draw_secret(std::size_t bytes);

class ClientHandshake {
 public:
  explicit ClientHandshake(std::string secret);
  /// What is sent first.
  [[nodiscard]] std::string hello() const;
  /// What is sent in reply to the server's kChallengeBytes; nothing where the server does not know
  /// the secret.
  [[nodiscard]] std::optional<std::string> reply_to(std::string_view challenge) const;

 private:
  std::string secret_;
  std::string nonce_;
};

class ServerHandshake {
 public:
  enum class Admission : std::uint8_t { kWaiting, kRefused, kAdmitted };

  explicit ServerHandshake(std::string secret);
  /// Takes what it understands off the front of `input`; `answer` is what is to be sent, if
  /// anything.
  [[nodiscard]] Admission receive(std::string& input, std::string& answer);

 private:
  std::string secret_;
  std::string expected_;  ///< the client's proof; empty before its hello
};

}  // namespace gtopk::bootstrap
