// Sparse, wire room: how a list (memory) becomes the bytes of a message, and back. A codec is pure:
// it knows no group, and decoding reads nothing but the bytes and writes nothing but its list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string_view>

#include "src/gtopk/value/list.hpp"
#include "src/gtopk/value/registry.hpp"

namespace gtopk::sparse {

/// In front of every list's bytes, for the header of whoever sends it.
inline constexpr std::size_t kFrontBytes = 64;

/// What decode() says of bytes that are no list; the text goes on "<rank> sent a damaged list: ".
class Damaged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the header in front of a message says of the list in it.
struct ListHeader {
  std::uint64_t count = 0;
  std::uint32_t index_bytes = 0;
  bool finite = true;
};

/// Makes room; what it gives is aligned to 64 bytes and lives as long as the operation.
class Rooms {
 public:
  virtual ~Rooms() = default;
  [[nodiscard]] virtual std::span<std::byte> room(std::size_t bytes) = 0;
};

/// What became of a list's entries when they were rounded.
struct Rounded {
  /// Entries that are left: those rounded to zero are not.
  std::size_t kept = 0;
  /// Entries that were not what they are rounded to.
  std::size_t lost = 0;
  /// False: one became infinite.
  bool finite = true;
};

class Codec {
 public:
  virtual ~Codec() = default;

  /// An empty list for up to `capacity` entries.
  [[nodiscard]] virtual List make(EntryType type, std::size_t capacity, Rooms& rooms) const = 0;
  /// The list has got `count` entries, the first of its room. Its arrays may move.
  virtual void close(EntryType type, List& list, std::size_t count) const = 0;

  /// Whether messages have less of a value than the list.
  [[nodiscard]] virtual bool rounds() const { return false; }
  /// Whether a part of a rounded list is rounded, too.
  [[nodiscard]] virtual bool parts_are_rounded() const { return true; }
  /// Whether many values of a list become alike: a node that selected from them would go by their
  /// indices.
  [[nodiscard]] virtual bool ties() const { return false; }
  /// Rounds the first `count` entries of a list, not closed yet, to what a message has of them;
  /// rounding what is rounded changes nothing. The differences go into `lost`, which has room for
  /// `count`, where it is not null; those of entries that become zero only if `zeros_are_lost`.
  virtual Rounded round(EntryType /*type*/, const List& /*list*/, std::size_t count,
                        const List* /*lost*/, bool /*zeros_are_lost*/) const {
    return {.kept = count};
  }

  /// The most bytes that a message of up to `capacity` entries below d can have.
  [[nodiscard]] virtual std::size_t message_bytes(EntryType type, std::size_t capacity,
                                                  std::uint64_t d) const = 0;
  /// Whether entries are coded, which takes time for each of them.
  [[nodiscard]] virtual bool codes() const { return true; }
  /// The bytes that a message of so many entries has for random indices: an estimate, for planning.
  [[nodiscard]] virtual double expected_bytes(EntryType type, std::uint64_t entries,
                                              std::uint64_t d) const {
    return static_cast<double>(message_bytes(type, entries, d));
  }
  /// The message of a closed list, with kFrontBytes in front for the caller to fill.
  [[nodiscard]] virtual std::span<std::byte> encode(EntryType type, const List& list,
                                                    std::uint64_t d, Rooms& rooms) const = 0;
  /// The list in a message (kFrontBytes in front), which it may go on using as its memory. Throws
  /// Damaged for more than `capacity` entries, indices that do not ascend below d, or bytes that
  /// encode() would not have written; nothing but a room of its own has been written to then.
  [[nodiscard]] virtual List decode(EntryType type, const ListHeader& says,
                                    std::span<std::byte> message, std::size_t capacity,
                                    std::uint64_t d, Rooms& rooms) const = 0;
};

struct CodecRow {
  std::string_view name;
  std::string_view description;
  const Codec& codec;
};

/// The rows of src/gtopk/wire/registry.cpp, and what was added.
[[nodiscard]] Registry<CodecRow>& codec_registry();

}  // namespace gtopk::sparse
