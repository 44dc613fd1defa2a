// Engine: what engines tell each other outside of any collective: this one failed, are you there,
// goodbye. One message of fixed size each, on a tag kind of its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "gtopk/error.hpp"

namespace gtopk::engine {

enum class NoticeKind : std::uint8_t {
  kAbort = 1,         ///< the sender's part of this operation failed: fail with the same cause
  kGroupFailure = 2,  ///< the group is over
  kProbe = 3,         ///< what are you doing in this operation? A living engine answers
  kReply = 4,
  kGoodbye = 5,  ///< the sender leaves in good order, and has sent all it will
  kAsk =
      6,  ///< your message does not fit: what did you call? Answered only while the operation runs
  kCall = 7,      ///< the answer: the sender's call, in words
  kWithdraw = 8,  ///< the sender has given a point-to-point message up; `sequence`: Withdrawal
};

struct Notice {
  static constexpr std::size_t kBytes = 1024;
  static constexpr std::size_t kMaxText = kBytes - 32;
  using Wire = std::array<std::byte, kBytes>;

  NoticeKind kind = NoticeKind::kGoodbye;
  ErrorKind error = ErrorKind::kTransport;
  std::uint32_t group = 0;  ///< the receiver's number of it
  std::uint64_t sequence = 0;
  std::string text;                ///< longer than kMaxText is cut
  std::uint32_t answer_group = 0;  ///< the sender's number of the group
};

/// Which message, in the 64 bits of Notice::sequence.
struct Withdrawal {
  std::uint32_t source;  ///< rank of the sender in the group
  std::uint32_t serial;

  [[nodiscard]] std::uint64_t packed() const {
    return (static_cast<std::uint64_t>(source) << 32U) | serial;
  }
  [[nodiscard]] static Withdrawal unpacked(std::uint64_t bits) {
    return {static_cast<std::uint32_t>(bits >> 32U), static_cast<std::uint32_t>(bits)};
  }
};

void encode(const Notice& notice, Notice::Wire& wire);
/// Nothing for bytes that are no notice.
[[nodiscard]] std::optional<Notice> decode(std::span<const std::byte> wire);

}  // namespace gtopk::engine
