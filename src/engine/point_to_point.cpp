#include "src/engine/point_to_point.hpp"

#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/engine/flow_control.hpp"

namespace gtopk::engine {
namespace {

/// The start of every message, little-endian; the payload, or nothing, follows.
struct TransferHeader {
  static constexpr std::uint32_t kMagic = 0x504b5447;  // "GTKP"

  std::uint32_t magic = kMagic;
  std::uint32_t serial = 0;
  std::uint64_t bytes = 0;   ///< bytes of the payload, however it is sent
  std::uint64_t window = 0;  ///< the sender's window, see FlowControl
  std::uint32_t held = 0;    ///< 1 if the sender keeps the payload until it is cleared
  std::uint32_t reserved = 0;
};
static_assert(sizeof(TransferHeader) == kTransferHeaderBytes);

constexpr bool is_short(std::uint64_t bytes) { return bytes <= kShortPayloadBytes; }

bool travels_with_header(const TransferHeader& header) {
  return header.held == 0 && is_short(header.bytes);
}

/// Returns a buffer for a header of that rank and tag, and for the payload that may be sent with
/// it: a message of that many bytes or, if any message was withdrawn, a message of any length, so
/// that its header shows whether it was withdrawn.
std::span<std::byte> buffer_for_header(GroupView& group, std::uint32_t from, std::int32_t tag,
                                       std::size_t bytes) {
  const std::size_t payload = is_short(bytes) ? bytes : 0;
  return group.buffer(sizeof(TransferHeader) +
                      (group.any_withdrawn(from, tag) ? kShortPayloadBytes : payload));
}

[[noreturn]] void throw_does_not_fit(const GroupView& group, std::uint32_t from, std::uint64_t sent,
                                     std::size_t expected) {
  throw Error(ErrorKind::kMismatch,
              fmt::format("{} sent {} bytes, {} expects {}", group.member(from), sent,
                          group.member(group.rank()), expected));
}

TransferHeader read_header(std::span<const std::byte> message, const GroupView& group,
                           std::uint32_t from) {
  TransferHeader header;
  if (message.size() >= sizeof header) {
    std::memcpy(&header, message.data(), sizeof header);
    const std::uint64_t with_it = travels_with_header(header) ? header.bytes : 0;
    const bool whole = message.size() == sizeof header + with_it;
    if (header.magic == TransferHeader::kMagic && whole) {
      return header;
    }
  }
  throw Error(ErrorKind::kMismatch,
              fmt::format("{} sent {} bytes that are not a message of this version: use one gtopk "
                          "version on all ranks",
                          group.member(from), message.size()));
}

/// Returns the header of a message of `received` bytes from that rank, which a receive has matched
/// and which is in `message`. Returns nullopt if it was withdrawn, so that the receive takes the
/// next one. If the receive has failed, throws and leaves the message to the next receive.
std::optional<TransferHeader> accept_header(GroupView& group, std::uint32_t from, std::int32_t tag,
                                            std::size_t received,
                                            std::span<const std::byte> message,
                                            std::size_t expected) {
  if (received > message.size()) {  // the payload sent with the header is longer than expected
    const std::size_t sent = received - sizeof(TransferHeader);
    group.matched(from, sent, FlowControl::kUnknownWindow);
    throw_does_not_fit(group, from, sent, expected);
  }
  if (group.failed()) {
    group.leave_unread(from, tag, message.first(received));
  }
  const TransferHeader header = read_header(message.first(received), group, from);
  const bool withdrawn = group.take_withdrawn(from, tag, header.serial);
  // A withdrawn payload that was sent apart has been returned, or never came.
  const bool counts = !withdrawn || travels_with_header(header);
  if (header.held != 0 && !withdrawn) {
    group.clear_payload(from, header.serial);
  }
  group.matched(from, counts ? header.bytes : 0, header.window);
  return withdrawn ? std::nullopt : std::optional(header);
}

/// Receives what a header announces: the payload is also in `message`, or follows.
Task<void> take_payload(GroupView& group, std::uint32_t from, TransferHeader header,
                        std::span<const std::byte> message, Bytes buffer) {
  const bool follows = !travels_with_header(header);
  if (follows) {
    group.expect_payload(from, header.serial);
  }
  if (header.bytes != buffer.size()) {
    throw_does_not_fit(group, from, header.bytes, buffer.size());
  }
  if (follows) {
    Message payload = group.recv_payload(from, header.serial, buffer);
    const std::size_t received = co_await payload;
    if (received == buffer.size()) {
      co_return;
    }
    throw Error(ErrorKind::kMismatch, fmt::format("{} announced {} bytes and sent {}",
                                                  group.member(from), buffer.size(), received));
  }
  if (!buffer.empty()) {
    std::memcpy(buffer.host().data(), message.data() + sizeof header, buffer.size());
  }
}

}  // namespace

Task<void> send(GroupView& group, std::uint32_t to, std::int32_t tag, ConstBytes data) {
  TransferHeader header;
  header.bytes = data.size();
  header.window = group.send_window();
  const std::uint64_t ahead = group.charge(to, data.size());
  header.held = ahead != 0 ? 0 : 1;
  const bool one_message = travels_with_header(header);
  header.serial = group.begin_transfer(to, tag, ahead, one_message ? 0 : data.size());
  const std::span<std::byte> message =
      group.buffer(sizeof header + (one_message ? data.size() : 0));
  std::memcpy(message.data(), &header, sizeof header);
  if (one_message) {
    if (!data.empty()) {
      std::memcpy(message.data() + sizeof header, data.host().data(), data.size());
    }
    Message whole = group.send_header(to, tag, message);
    co_await whole;
    co_return;
  }
  std::optional<Message> head(group.send_header(to, tag, message));
  Message& first = *head;
  if (first.await_ready() || group.transfer_lost()) {  // in both cases await throws
    co_await first;
    head.reset();  // the payload reuses its slot
  }
  Message payload = header.held != 0 ? group.hold_payload(to, header.serial, data)
                                     : group.send_payload(to, header.serial, data);
  if (head) {
    co_await first;
  }
  co_await payload;
}

Task<void> recv(GroupView& group, std::uint32_t from, std::int32_t tag, Bytes buffer) {
  std::optional<ReceiveTurn> turn(std::in_place, group, from, tag);
  ReceiveTurn& mine = *turn;
  co_await mine;
  // The buffer is taken only now because many receives may wait behind each other.
  const std::span<std::byte> message = buffer_for_header(group, from, tag, buffer.size());
  std::optional<TransferHeader> header;
  while (!header) {
    std::size_t received = group.read_again(from, tag, message);
    if (received == 0) {
      Message head = group.recv_header(from, tag, message);
      received = co_await head;
    }
    header = accept_header(group, from, tag, received, message, buffer.size());
  }
  turn.reset();
  co_await take_payload(group, from, *header, message, buffer);
}

Task<std::uint32_t> recv_any(GroupView& group, std::int32_t tag, Bytes buffer) {
  for (;;) {
    std::optional<AnySender> place(std::in_place, group, tag);
    AnySender& sender = *place;
    std::uint32_t from = 0;
    do {
      const std::uint32_t found = co_await sender;
      from = found;
    } while (!sender.still_there());
    place.reset();
    std::optional<ReceiveTurn> turn(std::in_place, group, from, tag);
    ReceiveTurn& mine = *turn;
    co_await mine;
    const std::span<std::byte> message = buffer_for_header(group, from, tag, buffer.size());
    std::size_t received = group.read_again(from, tag, message);
    if (received == 0) {
      Message head = group.recv_header(from, tag, message);
      received = co_await head;
    }
    const auto header = accept_header(group, from, tag, received, message, buffer.size());
    turn.reset();
    if (header) {
      co_await take_payload(group, from, *header, message, buffer);
      co_return from;
    }
  }
}

}  // namespace gtopk::engine
