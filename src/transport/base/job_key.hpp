// Transport, base: uses of a job's secret between its ranks: values that only they can read or
// write, wherever they are stored, and proofs that a message comes from one of them. It knows
// neither where the secret comes from nor what is sealed or proved.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gtopk::transport {

class JobKey {
 public:
  static constexpr std::size_t kProofBytes = 32;
  using Proof = std::span<std::byte, kProofBytes>;

  /// Returns the key of that secret, or null if it is empty because the job has none. Throws
  /// Error{kBootstrap}.
  [[nodiscard]] static std::shared_ptr<const JobKey> of(std::string_view secret);

  /// Encrypts and signs `text`, with XSalsa20 and Poly1305. Only open() with the same secret and
  /// the same context returns it, so a value copied elsewhere is worthless.
  [[nodiscard]] std::string seal(std::string_view context, std::string_view text) const;
  [[nodiscard]] std::optional<std::string> open(std::string_view context,
                                                std::string_view sealed) const;

  /// Writes the proof that process `from` knows the secret and sends `message` to process `to`:
  /// keyed BLAKE2b of all three. Both are identities (PeerInfo), which are drawn at random when a
  /// process starts: they are the nonces, and nothing can be replayed to another process.
  void prove(std::uint64_t from, std::uint64_t to, std::span<const std::byte> message,
             Proof proof) const;
  /// Checks a proof. It takes the same time wherever a wrong proof differs.
  [[nodiscard]] bool proves(std::uint64_t from, std::uint64_t to,
                            std::span<const std::byte> message,
                            std::span<const std::byte> proof) const;

 private:
  using Key = std::array<unsigned char, 32>;
  explicit JobKey(std::string_view secret);
  /// The key for one purpose.
  [[nodiscard]] Key key_for(std::string_view purpose, std::string_view context) const;

  Key master_{};
  Key prover_{};
};

}  // namespace gtopk::transport
