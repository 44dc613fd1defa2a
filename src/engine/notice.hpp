// Engine: the notices that engines send each other outside of any collective: an operation failed,
// are you there, goodbye. Each notice is one message of fixed size, with its own tag kind.
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
  kGroupFailure = 2,  ///< the group has failed
  kProbe = 3,         ///< asks what the receiver is doing; a living engine answers
  kReply = 4,
  /// The sender leaves in order and sends nothing more; `text`: its last error, if any. One goodbye
  /// is sent over each connection, and `sequence` is the number of goodbyes still to come. When the
  /// last one has arrived, everything has arrived.
  kGoodbye = 5,
  kAsk = 6,  ///< "your message does not fit: what did you call?", answered while the operation runs
  kCall = 7,      ///< the answer: the sender's call, as text
  kWithdraw = 8,  ///< the sender has withdrawn a point-to-point message: see Withdrawal
  /// The answer to a kAbort or kGroupFailure. `sequence` is the collective's, or all ones for the
  /// group.
  kHeard = 9,
  kAllHeard = 10,  ///< every member has answered the sender; `sequence` as in kHeard
  // The following are for point-to-point messages; see FlowControl.
  kClear = 11,      ///< asks for these payloads, whose receives wait; `text`: serial numbers
  kCredit = 12,     ///< receives have matched more bytes; `sequence`: how many
  kUnmatched = 13,  ///< the answer to a kWithdraw of a held message; `sequence`: its serial number
  /// The first notice from one process to another: the sender has an endpoint to the receiver, and
  /// will say goodbye over it. Answered with the same. `text`: the sender's address, or empty.
  kHello = 14,
};

struct Notice {
  static constexpr std::size_t kBytes = 1024;
  static constexpr std::size_t kMaxText = kBytes - 32;
  using Wire = std::array<std::byte, kBytes>;

  NoticeKind kind = NoticeKind::kGoodbye;
  ErrorKind error = ErrorKind::kTransport;
  std::uint32_t group = 0;  ///< the receiver's number for the group
  std::uint64_t sequence = 0;
  std::string text;                ///< truncated to kMaxText
  std::uint32_t answer_group = 0;  ///< the sender's number for the group
};

/// Which message was withdrawn: the content of a kWithdraw.
struct Withdrawal {
  std::uint32_t source;  ///< rank of the sender in the group, at most 31 bits
  std::int32_t tag;      ///< the user's tag
  std::uint32_t serial;
  bool held;  ///< the sender still has the payload; answered by kUnmatched unless cleared
  std::uint64_t apart = 0;  ///< bytes sent separately from its header

  [[nodiscard]] Notice notice() const;
  [[nodiscard]] static Withdrawal of(const Notice& notice);
};

void encode(const Notice& notice, std::span<std::byte, Notice::kBytes> wire);
/// Returns nullopt if the bytes are not a valid notice.
[[nodiscard]] std::optional<Notice> decode(std::span<const std::byte> wire);

}  // namespace gtopk::engine
