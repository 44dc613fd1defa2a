#include "src/transport/bootstrap/handshake.hpp"

#include <algorithm>
#include <utility>

#include <sodium.h>

#include "gtopk/error.hpp"

namespace gtopk::bootstrap {
namespace {

constexpr std::string_view kHello = "GTA1";
static_assert(kProofBytes == crypto_auth_hmacsha256_BYTES);

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string proof(std::string_view secret, std::string_view who, std::string_view client_nonce,
                  std::string_view server_nonce) {
  std::string code(kProofBytes, '\0');
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes_of(secret), secret.size());
  for (const std::string_view part : {who, client_nonce, server_nonce}) {
    crypto_auth_hmacsha256_update(&state, bytes_of(part), part.size());
  }
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(code.data()));
  return code;
}

/// Compares in the same time wherever the two differ, so that timing leaks nothing about a proof.
bool equal(std::string_view proof, std::string_view expected) {
  return proof.size() == expected.size() &&
         sodium_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

}  // namespace

std::string draw_secret(std::size_t bytes) {
  if (sodium_init() < 0) {  // idempotent
    throw Error(ErrorKind::kBootstrap, "libsodium found no source of randomness");
  }
  std::string secret(bytes, '\0');
  randombytes_buf(secret.data(), secret.size());
  return secret;
}

ClientHandshake::ClientHandshake(std::string secret)
    : secret_(std::move(secret)), nonce_(draw_secret(kNonceBytes)) {}

std::string ClientHandshake::hello() const { return std::string(kHello).append(nonce_); }

std::optional<std::string> ClientHandshake::reply_to(std::string_view challenge) const {
  const std::string_view server_nonce = challenge.substr(0, kNonceBytes);
  const std::string expected = proof(secret_, "server", nonce_, server_nonce);
  if (!equal(challenge.substr(server_nonce.size()), expected)) {
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
  if (input.size() < kProofBytes) {
    return Admission::kWaiting;
  }
  const bool good = equal(std::string_view(input).substr(0, kProofBytes), expected_);
  input.erase(0, kProofBytes);
  return good ? Admission::kAdmitted : Admission::kRefused;
}

}  // namespace gtopk::bootstrap
