// Sparse, wire: encodes a list in memory into the bytes of a message, and decodes it. A codec is
// pure: it does not know groups, and decoding reads only the bytes and writes only its list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>

#include "src/gtopk/value/list.hpp"
#include "src/gtopk/value/registry.hpp"
#include "src/gtopk/wire/block_coder.hpp"

namespace gtopk::sparse {

/// The space in front of every list's bytes, for the sender's header.
inline constexpr std::size_t kFrontBytes = 64;

/// Thrown by decode() for invalid bytes; the text continues "<rank> sent a damaged list: ".
class Damaged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What a message's header says about the list in it.
struct ListHeader {
  std::uint64_t count = 0;
  std::uint32_t index_bytes = 0;
  bool finite = true;
};

/// Allocates memory, 64-byte aligned, that lives as long as the operation.
class BufferSource {
 public:
  virtual ~BufferSource() = default;
  [[nodiscard]] virtual std::span<std::byte> buffer(std::size_t bytes) = 0;
};

/// The result of rounding a list's entries.
struct Rounded {
  /// The number of entries that remain; entries rounded to zero do not.
  std::size_t kept = 0;
  /// The number of entries whose difference was written to `lost`.
  std::size_t lost = 0;
  /// False if an entry is not finite after rounding.
  bool finite = true;
};

class Codec {
 public:
  virtual ~Codec() = default;

  /// Makes an empty list for up to `capacity` entries.
  [[nodiscard]] virtual List make(EntryType type, std::size_t capacity,
                                  BufferSource& buffers) const = 0;
  /// Closes a list that has `count` entries, at the start of its capacity. Its arrays may move.
  virtual void close(EntryType type, List& list, std::size_t count) const = 0;

  /// Whether messages hold rounded values.
  [[nodiscard]] virtual bool rounds() const { return false; }
  /// Whether a part of a rounded list is also rounded.
  [[nodiscard]] virtual bool parts_are_rounded() const { return true; }
  /// Whether many values of a list become equal, so that a node that selected from them would
  /// decide by index.
  [[nodiscard]] virtual bool ties() const { return false; }
  /// Rounds the first `count` entries of a list that is not closed yet to what a message can hold;
  /// idempotent. Unless `lost` is null, the differences are written to it; it has capacity for
  /// `count`. The differences of entries that become zero are written only if `zeros_are_lost`.
  virtual Rounded round(EntryType /*type*/, const List& /*list*/, std::size_t count,
                        const List* /*lost*/, bool /*zeros_are_lost*/) const {
    return {.kept = count};
  }

  /// The most bytes that a message of up to `capacity` entries below d can have.
  [[nodiscard]] virtual std::size_t message_bytes(EntryType type, std::size_t capacity,
                                                  std::uint64_t d) const = 0;
  /// Whether entries are coded, which takes time per entry.
  [[nodiscard]] virtual bool codes() const { return true; }
  /// The coder that `dense` uses for its values on this wire; null if it sends them as they are.
  [[nodiscard]] virtual const BlockCoder* blocks() const { return nullptr; }
  /// The expected bytes of a message of that many entries with random indices, for planning.
  [[nodiscard]] virtual double expected_bytes(EntryType type, std::uint64_t entries,
                                              std::uint64_t d) const {
    return static_cast<double>(message_bytes(type, entries, d));
  }
  /// Encodes a closed list as a message, with kFrontBytes in front for the caller to fill.
  [[nodiscard]] virtual std::span<std::byte> encode(EntryType type, const List& list,
                                                    std::uint64_t d,
                                                    BufferSource& buffers) const = 0;
  /// Decodes the list in a message (kFrontBytes in front); the list may keep using the message's
  /// memory. Throws Damaged for more than `capacity` entries, indices that do not ascend below d,
  /// or bytes that encode() would not have written; it has then written only to memory of its own.
  [[nodiscard]] virtual List decode(EntryType type, const ListHeader& says,
                                    std::span<std::byte> message, std::size_t capacity,
                                    std::uint64_t d, BufferSource& buffers) const = 0;
};

struct CodecRow {
  std::string_view name;
  std::string_view description;
  const Codec& codec;
};

/// The rows of src/gtopk/wire/registry.cpp, and rows added at run time.
[[nodiscard]] Registry<CodecRow>& codec_registry();

}  // namespace gtopk::sparse
