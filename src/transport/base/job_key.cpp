#include "src/transport/base/job_key.hpp"

#include <algorithm>

#include <sodium.h>

#include "gtopk/error.hpp"

namespace gtopk::transport {
namespace {

constexpr std::size_t kNonce = crypto_secretbox_NONCEBYTES;
constexpr std::size_t kSealOverhead = kNonce + crypto_secretbox_MACBYTES;

const unsigned char* raw(const void* bytes) { return static_cast<const unsigned char*>(bytes); }
unsigned char* raw(void* bytes) { return static_cast<unsigned char*>(bytes); }

/// Computes BLAKE2b over several parts.
class Hash {
 public:
  Hash(std::span<const unsigned char> key, std::size_t bytes) {
    crypto_generichash_init(&state_, key.data(), key.size(), bytes);
  }
  void add(const void* bytes, std::size_t count) {
    crypto_generichash_update(&state_, raw(bytes), count);
  }
  /// Adds a number as little-endian bytes, so that hosts of either byte order agree.
  void add(std::uint64_t number) {
    std::array<unsigned char, sizeof number> bytes{};
    for (unsigned char& byte : bytes) {
      byte = static_cast<unsigned char>(number & 0xffU);
      number >>= 8U;
    }
    add(bytes.data(), bytes.size());
  }
  /// Adds a text after its length, so that no two lists of texts have the same bytes.
  void add(std::string_view text) {
    add(std::uint64_t{text.size()});
    add(text.data(), text.size());
  }
  void finish(void* hash, std::size_t bytes) {
    crypto_generichash_final(&state_, raw(hash), bytes);
  }

 private:
  crypto_generichash_state state_{};
};

}  // namespace

std::shared_ptr<const JobKey> JobKey::of(std::string_view secret) {
  return secret.empty() ? nullptr : std::shared_ptr<const JobKey>(new JobKey(secret));
}

JobKey::JobKey(std::string_view secret) {
  if (sodium_init() < 0) {  // idempotent
    throw Error(ErrorKind::kBootstrap, "libsodium found no source of randomness");
  }
  Hash hash({}, master_.size());
  hash.add(std::string_view("gtopk job"));
  hash.add(secret);
  hash.finish(master_.data(), master_.size());
  prover_ = key_for("prove", {});
}

JobKey::Key JobKey::key_for(std::string_view purpose, std::string_view context) const {
  Key key{};
  static_assert(sizeof key == crypto_secretbox_KEYBYTES);
  Hash hash(master_, key.size());
  hash.add(purpose);
  hash.add(context);
  hash.finish(key.data(), key.size());
  return key;
}

std::string JobKey::seal(std::string_view context, std::string_view text) const {
  const Key key = key_for("seal", context);
  std::string sealed(kSealOverhead + text.size(), '\0');
  randombytes_buf(sealed.data(), kNonce);
  crypto_secretbox_easy(raw(sealed.data()) + kNonce, raw(text.data()), text.size(),
                        raw(sealed.data()), key.data());
  return sealed;
}

std::optional<std::string> JobKey::open(std::string_view context, std::string_view sealed) const {
  if (sealed.size() < kSealOverhead) {
    return std::nullopt;
  }
  const Key key = key_for("seal", context);
  std::string text(sealed.size() - kSealOverhead, '\0');
  const bool good =
      crypto_secretbox_open_easy(raw(text.data()), raw(sealed.data()) + kNonce,
                                 sealed.size() - kNonce, raw(sealed.data()), key.data()) == 0;
  return good ? std::optional(std::move(text)) : std::nullopt;
}

void JobKey::prove(std::uint64_t from, std::uint64_t to, std::span<const std::byte> message,
                   Proof proof) const {
  Hash hash(prover_, proof.size());
  hash.add(from);
  hash.add(to);
  hash.add(message.data(), message.size());
  hash.finish(proof.data(), proof.size());
}

bool JobKey::proves(std::uint64_t from, std::uint64_t to, std::span<const std::byte> message,
                    std::span<const std::byte> proof) const {
  std::array<std::byte, kProofBytes> expected{};
  prove(from, to, message, expected);
  return proof.size() == expected.size() &&
         sodium_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

}  // namespace gtopk::transport
