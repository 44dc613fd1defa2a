// Transport, base: the 64 bits by which receives and messages are matched.
//
//   kind 2 | group 12 | source 18 | sequence 16 | step 8 | chunk 8      collective
//   kind 2 | group 12 | source 18 | user tag 32                         point-to-point header
//   kind 2 | group 12 | source 18 | serial 32                           point-to-point payload
//   kind 2 | sender's process identity 62                               control
//
// Receives always match every bit (UCX then matches by hash). Sequence, step and chunk wrap:
// messages of one (source, tag) arrive in the order they were sent, and headers carry the whole
// 64-bit sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gtopk::transport {

enum class TagKind : std::uint8_t {
  kCollective = 0,
  kPointToPoint = 1,
  kControl = 2,
  kPayload = 3,
};
inline constexpr std::size_t kTagKinds = 4;

using Tag = std::uint64_t;

struct TagBits {
  static constexpr unsigned kKind = 2;
  static constexpr unsigned kGroup = 12;
  static constexpr unsigned kSource = 18;
  static constexpr unsigned kSequence = 16;
  static constexpr unsigned kStep = 8;
  static constexpr unsigned kChunk = 8;
  static constexpr unsigned kUser = 32;
};
static_assert(TagBits::kKind + TagBits::kGroup + TagBits::kSource + TagBits::kSequence +
                  TagBits::kStep + TagBits::kChunk ==
              64);
static_assert(TagBits::kUser == TagBits::kSequence + TagBits::kStep + TagBits::kChunk);

inline constexpr std::uint32_t kMaxGroups = 1U << TagBits::kGroup;
inline constexpr std::uint32_t kMaxRanks = 1U << TagBits::kSource;

namespace detail {
[[nodiscard]] constexpr Tag prefix(TagKind kind, std::uint32_t group, std::uint32_t source) {
  return (static_cast<Tag>(kind) << (TagBits::kGroup + TagBits::kSource + TagBits::kUser)) |
         (static_cast<Tag>(group & (kMaxGroups - 1)) << (TagBits::kSource + TagBits::kUser)) |
         (static_cast<Tag>(source & (kMaxRanks - 1)) << TagBits::kUser);
}
}  // namespace detail

[[nodiscard]] constexpr TagKind kind_of(Tag tag) {
  return static_cast<TagKind>(tag >> (64U - TagBits::kKind));
}

/// The group in a tag of any kind except control.
[[nodiscard]] constexpr std::uint32_t group_of(Tag tag) {
  return static_cast<std::uint32_t>(tag >> (TagBits::kSource + TagBits::kUser)) & (kMaxGroups - 1);
}
[[nodiscard]] constexpr std::uint32_t source_of(Tag tag) {
  return static_cast<std::uint32_t>(tag >> TagBits::kUser) & (kMaxRanks - 1);
}

/// The tag of a message of collective `sequence` of `group`, sent by group rank `source`.
[[nodiscard]] constexpr Tag collective_tag(std::uint32_t group, std::uint32_t source,
                                           std::uint64_t sequence, std::uint32_t step,
                                           std::uint32_t chunk = 0) {
  return detail::prefix(TagKind::kCollective, group, source) |
         ((sequence & 0xffffU) << (TagBits::kStep + TagBits::kChunk)) |
         (static_cast<Tag>(step & 0xffU) << TagBits::kChunk) | (chunk & 0xffU);
}

/// The tag of a point-to-point message's header, or of a whole short message, with the user's tag
/// (any 32 bits).
[[nodiscard]] constexpr Tag point_to_point_tag(std::uint32_t group, std::uint32_t source,
                                               std::int32_t user_tag) {
  return detail::prefix(TagKind::kPointToPoint, group, source) |
         static_cast<std::uint32_t>(user_tag);
}

/// The tag of a long point-to-point message's payload. `serial` counts its sender's messages, so
/// that no two in flight have the same tag.
[[nodiscard]] constexpr Tag payload_tag(std::uint32_t group, std::uint32_t source,
                                        std::uint32_t serial) {
  return detail::prefix(TagKind::kPayload, group, source) | serial;
}

/// The tag of a notice between two engines: abort, probe, reply, goodbye. A process has one such
/// channel per peer, whatever groups they share, so 62 bits of the process identity identify the
/// sender.
[[nodiscard]] constexpr Tag control_tag(std::uint64_t sender_identity) {
  return (static_cast<Tag>(TagKind::kControl) << 62U) | (sender_identity & ((Tag{1} << 62U) - 1));
}

/// A tag that, with group_mask(), matches any message of that kind in the group.
[[nodiscard]] constexpr Tag group_tag(TagKind kind, std::uint32_t group) {
  return detail::prefix(kind, group, 0);
}

/// A mask for cleaning up after a failed group. It covers all the group's messages of one kind.
[[nodiscard]] constexpr Tag group_mask() {
  return detail::prefix(TagKind{kTagKinds - 1}, kMaxGroups - 1, 0);
}

/// A mask for cleaning up after a failed collective. It covers the collective's messages from any
/// source, at any step.
[[nodiscard]] constexpr Tag any_source_mask() {
  return group_mask() | (Tag{0xffff} << (TagBits::kStep + TagBits::kChunk));
}

/// A tag as text for logs: "collective group 3 source 1 sequence 17 step 2 chunk 0".
[[nodiscard]] std::string describe(Tag tag);

}  // namespace gtopk::transport
