// Collectives: the header in front of the first messages of a collective: the fingerprint of its
// sender's call, and what follows. If calls differ, both sides get an error that names both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gtopk/error.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::collectives {

struct Header {
  /// This subtree contains NaN or infinity; no entries follow.
  static constexpr std::uint16_t kNonFinite = 1;
  /// Values are unrounded although the call's wire rounds, because they are sums, which it does not
  /// round.
  static constexpr std::uint16_t kUnrounded = 2;
  /// The payload is `count` selections, not their sum.
  static constexpr std::uint16_t kForwarded = 4;
  /// The sender uses the other path, which is not along a tree (dense_paths.hpp).
  static constexpr std::uint16_t kOtherWay = 8;
  /// The sender first measures the cost of messages (path_costs.hpp).
  static constexpr std::uint16_t kMeasures = 16;
  static constexpr std::uint16_t kFlags =
      kNonFinite | kUnrounded | kForwarded | kOtherWay | kMeasures;

  std::uint32_t magic = 0x324b5447;  // "GTK2", little-endian
  std::uint16_t version = 2;
  std::uint16_t flags = 0;
  std::uint64_t fingerprint = 0;
  std::uint64_t sequence = 0;
  /// The bytes of an index in a list of entries: 4 or 8, or 0 if no entries can follow.
  std::uint32_t index_bytes = 0;
  /// The number of messages that carry the payload, including this one; 0 if there is only this
  /// one.
  std::uint32_t parts = 0;
  /// The number of elements, entries or selections that follow.
  std::uint64_t count = 0;
  /// The bytes at the end of the payload that count the ranks in each entry. 0 means one rank per
  /// entry.
  std::uint64_t count_bytes = 0;
};
inline constexpr std::size_t kHeaderBytes = 64;
static_assert(sizeof(Header) <= kHeaderBytes);

/// What follows a header.
struct Payload {
  std::uint64_t count = 0;
  std::uint16_t flags = 0;
  std::uint32_t index_bytes = 0;
  std::uint32_t parts = 0;
  std::uint64_t count_bytes = 0;
};

/// Writes the header of the group's operation into the first kHeaderBytes of `message`.
void write_header(std::span<std::byte> message, const engine::GroupView& group,
                  Payload payload = {});

/// Reads the header of a message from `from`. Throws Error{kMismatch} if it is not a header of this
/// version, if it announces more than `most_parts`, or if the calls differ. In the last case it
/// asks the sender, and names both calls.
engine::Task<Header> read_header(std::span<const std::byte> message, engine::GroupView& group,
                                 std::uint32_t from, std::uint32_t most_parts = 0);

/// Throws Error{kMismatch} unless the header announces exactly that payload, as messages of agreed
/// size do.
void require_payload(const Header& header, const Payload& expected, const engine::GroupView& group,
                     std::uint32_t from);

/// Whether the operation failed, on this rank or another, because ranks used different paths.
[[nodiscard]] bool says_that_ways_differ(const Error& error);

/// Throws Error{kMismatch} unless the message has the agreed length.
void require_length(std::size_t received, std::size_t expected, const engine::GroupView& group,
                    std::uint32_t from);

}  // namespace gtopk::collectives
