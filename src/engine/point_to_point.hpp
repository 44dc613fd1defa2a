// Engine: a message from one rank to another under a tag of the user's choice, which need not be
// unique.
//
// A header travels under the user's tag and names the message by a serial number of its sender. A
// short payload travels in the same message; a long one follows straight from and to the users'
// memory, under a tag made of the serial number. So a sender that gives a message up can say which
// (NoticeKind::kWithdraw): the receiver lets go of the payload, and passes over the header when a
// receive meets it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::engine {

/// Header and payload of a message that travels as one.
inline constexpr std::size_t kShortMessageBytes = 8192;
inline constexpr std::size_t kTransferHeaderBytes = 32;
inline constexpr std::size_t kShortPayloadBytes = kShortMessageBytes - kTransferHeaderBytes;

/// Ends when `data` may be reused.
Task<void> send(GroupView& group, std::uint32_t to, std::int32_t tag,
                std::span<const std::byte> data);

/// Throws Error{kMismatch} with both sides' sizes unless `room.size()` bytes are sent. Messages of
/// one sender and tag are received in the order in which they were sent.
Task<void> recv(GroupView& group, std::uint32_t from, std::int32_t tag, std::span<std::byte> room);

/// The same of whichever rank sends first, which it gives; this one's own messages count. Messages
/// that a receive of their sender waits for are left to that.
Task<std::uint32_t> recv_any(GroupView& group, std::int32_t tag, std::span<std::byte> room);

}  // namespace gtopk::engine
