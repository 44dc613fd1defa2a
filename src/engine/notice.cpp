#include "src/engine/notice.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gtopk::engine {
namespace {

constexpr std::uint32_t kMagic = 0x4e4b5447;  // "GTKN", little-endian

/// The first 32 bytes of a notice on the wire.
struct Head {
  std::uint32_t magic;
  std::uint8_t kind;
  std::uint8_t error;
  std::uint16_t text_bytes;
  std::uint32_t group;
  std::uint32_t answer_group;
  std::uint64_t sequence;
  std::uint64_t reserved;
};
static_assert(sizeof(Head) + Notice::kMaxText == Notice::kBytes);

/// The text of a withdrawal: the bytes sent apart, and the tag.
using Rest = std::array<std::uint64_t, 2>;

}  // namespace

void encode(const Notice& notice, std::span<std::byte, Notice::kBytes> wire) {
  const std::size_t length = std::min(notice.text.size(), Notice::kMaxText);
  const Head head{kMagic,
                  static_cast<std::uint8_t>(notice.kind),
                  static_cast<std::uint8_t>(notice.error),
                  static_cast<std::uint16_t>(length),
                  notice.group,
                  notice.answer_group,
                  notice.sequence,
                  0};
  std::ranges::fill(wire, std::byte{0});
  std::memcpy(wire.data(), &head, sizeof head);
  std::memcpy(wire.data() + sizeof head, notice.text.data(), length);
}

std::optional<Notice> decode(std::span<const std::byte> wire) {
  if (wire.size() != Notice::kBytes) {
    return std::nullopt;
  }
  Head head{};
  std::memcpy(&head, wire.data(), sizeof head);
  if (head.magic != kMagic || head.text_bytes > Notice::kMaxText) {
    return std::nullopt;
  }
  if (head.kind < static_cast<std::uint8_t>(NoticeKind::kAbort) ||
      head.kind > static_cast<std::uint8_t>(NoticeKind::kHello) ||
      head.error > static_cast<std::uint8_t>(ErrorKind::kUnsupported)) {
    return std::nullopt;
  }
  const auto* const text = reinterpret_cast<const char*>(wire.data() + sizeof head);
  return Notice{static_cast<NoticeKind>(head.kind),
                static_cast<ErrorKind>(head.error),
                head.group,
                head.sequence,
                std::string(text, head.text_bytes),
                head.answer_group};
}

Notice Withdrawal::notice() const {
  const Rest rest{apart, static_cast<std::uint32_t>(tag)};
  const auto bytes = std::bit_cast<std::array<char, sizeof rest>>(rest);
  return {NoticeKind::kWithdraw, ErrorKind::kAborted, 0,
          (static_cast<std::uint64_t>(held) << 63U) | (static_cast<std::uint64_t>(source) << 32U) |
              serial,
          std::string(bytes.data(), bytes.size())};
}

Withdrawal Withdrawal::of(const Notice& notice) {
  Rest rest{};
  if (notice.text.size() == sizeof rest) {
    std::memcpy(rest.data(), notice.text.data(), sizeof rest);
  }
  const auto [apart, tag] = rest;
  return {static_cast<std::uint32_t>(notice.sequence >> 32U) & 0x7fffffffU,
          static_cast<std::int32_t>(tag), static_cast<std::uint32_t>(notice.sequence),
          notice.sequence >> 63U != 0, apart};
}

}  // namespace gtopk::engine
