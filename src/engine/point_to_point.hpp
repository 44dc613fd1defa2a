// Engine: a message from one rank to another under a tag chosen by the user, which need not be
// unique.
//
// A header is sent under the user's tag and identifies the message by its sender's serial number. A
// short payload is part of the same message; a long one goes directly between the users' memory,
// under a tag made from the serial number. So a sender that withdraws a message can identify it
// (NoticeKind::kWithdraw): the receiver discards the payload, and skips the header when a receive
// matches it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::engine {

/// The most bytes, header and payload, that are sent as one message.
inline constexpr std::size_t kShortMessageBytes = 8192;
inline constexpr std::size_t kTransferHeaderBytes = 32;
inline constexpr std::size_t kShortPayloadBytes = kShortMessageBytes - kTransferHeaderBytes;

/// Ends when `data` may be reused. A payload that is sent with its header must be in host memory,
/// both here and in the receive.
Task<void> send(GroupView& group, std::uint32_t to, std::int32_t tag, ConstBytes data);

/// Throws Error{kMismatch} with both sides' sizes unless exactly `buffer.size()` bytes were sent.
/// Messages of one sender and tag are received in the order in which they were sent.
Task<void> recv(GroupView& group, std::uint32_t from, std::int32_t tag, Bytes buffer);

/// Receives likewise from the rank that sends first, which may be this one; returns that rank. It
/// does not take messages for which a receive that names their sender waits.
Task<std::uint32_t> recv_any(GroupView& group, std::int32_t tag, Bytes buffer);

}  // namespace gtopk::engine
