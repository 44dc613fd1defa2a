#include "src/transport/bootstrap/handshake.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include "src/transport/bootstrap/sha256.hpp"

namespace gtopk::bootstrap {
namespace {

constexpr std::string_view kHello = "GTA1";

std::string proof(std::string_view secret, std::string_view who, std::string_view client_nonce,
                  std::string_view server_nonce) {
  return hmac_sha256(secret, std::string(who).append(client_nonce).append(server_nonce));
}

}  // namespace

std::string draw_secret(std::size_t bytes) {
  std::random_device random;
  std::string secret;
  while (secret.size() < bytes) {
    secret.push_back(static_cast<char>(random()));
  }
  return secret;
}

ClientHandshake::ClientHandshake(std::string secret)
    : secret_(std::move(secret)), nonce_(draw_secret(kNonceBytes)) {}

std::string ClientHandshake::hello() const { return std::string(kHello).append(nonce_); }

std::optional<std::string> ClientHandshake::reply_to(std::string_view challenge) const {
  const std::string_view server_nonce = challenge.substr(0, kNonceBytes);
  const std::string expected = proof(secret_, "server", nonce_, server_nonce);
  if (!equal_in_constant_time(challenge.substr(server_nonce.size()), expected)) {
    return std::nullopt;
  }
  return proof(secret_, "client", nonce_, server_nonce);
}

ServerHandshake::ServerHandshake(std::string secret) : secret_(std::move(secret)) {}

ServerHandshake::Admission ServerHandshake::receive(std::string& input, std::string& answer) {
  if (expected_.empty()) {
    const std::size_t seen = std::min(input.size(), kHello.size());
    if (std::string_view(input).substr(0, seen) != kHello.substr(0, seen)) {
      return Admission::kRefused;
    }
    if (input.size() < kHello.size() + kNonceBytes) {
      return Admission::kWaiting;
    }
    const std::string client_nonce = input.substr(kHello.size(), kNonceBytes);
    const std::string server_nonce = draw_secret(kNonceBytes);
    input.erase(0, kHello.size() + kNonceBytes);
    answer = server_nonce + proof(secret_, "server", client_nonce, server_nonce);
    expected_ = proof(secret_, "client", client_nonce, server_nonce);
    return Admission::kWaiting;
  }
  if (input.size() < kDigestBytes) {
    return Admission::kWaiting;
  }
  const bool good =
      equal_in_constant_time(std::string_view(input).substr(0, kDigestBytes), expected_);
  input.erase(0, kDigestBytes);
  return good ? Admission::kAdmitted : Admission::kRefused;
}

}  // namespace gtopk::bootstrap
