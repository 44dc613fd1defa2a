#include "src/engine/point_to_point.hpp"

#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "gtopk/error.hpp"

namespace gtopk::engine {
namespace {

/// The start of every message, little-endian; the payload, or nothing, follows.
struct TransferHeader {
  static constexpr std::uint32_t kMagic = 0x504b5447;  // "GTKP"

  std::uint32_t magic = kMagic;
  std::uint32_t serial = 0;
  std::uint64_t bytes = 0;  ///< of the payload, wherever it travels
  std::uint64_t reserved[2] = {};
};
static_assert(sizeof(TransferHeader) == kTransferHeaderBytes);

constexpr bool travels_with_header(std::uint64_t bytes) { return bytes <= kShortPayloadBytes; }

TransferHeader read_header(std::span<const std::byte> message, const GroupView& group,
                           std::uint32_t from) {
  TransferHeader header;
  if (message.size() >= sizeof header) {
    std::memcpy(&header, message.data(), sizeof header);
    const std::uint64_t with_it = travels_with_header(header.bytes) ? header.bytes : 0;
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

/// What a header announces: the payload is in `message`, too, or follows.
Task<void> take_payload(GroupView& group, std::uint32_t from, TransferHeader header,
                        std::span<const std::byte> message, Bytes room) {
  const bool follows = !travels_with_header(header.bytes);
  if (follows) {
    group.expect_payload(from, header.serial);
  }
  if (header.bytes != room.size()) {
    throw Error(ErrorKind::kMismatch,
                fmt::format("{} sent {} bytes, {} expects {}", group.member(from), header.bytes,
                            group.member(group.rank()), room.size()));
  }
  if (follows) {
    Message payload = group.recv_payload(from, header.serial, room);
    const std::size_t received = co_await payload;
    if (received == room.size()) {
      co_return;
    }
    throw Error(ErrorKind::kMismatch, fmt::format("{} announced {} bytes and sent {}",
                                                  group.member(from), room.size(), received));
  }
  if (!room.empty()) {
    std::memcpy(room.host().data(), message.data() + sizeof header, room.size());
  }
}

}  // namespace

Task<void> send(GroupView& group, std::uint32_t to, std::int32_t tag, ConstBytes data) {
  TransferHeader header;
  header.serial = group.begin_transfer(to);
  header.bytes = data.size();
  const bool one_message = travels_with_header(data.size());
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
  Message head = group.send_header(to, tag, message);
  Message payload = group.send_payload(to, header.serial, data);
  co_await head;
  co_await payload;
}

Task<void> recv(GroupView& group, std::uint32_t from, std::int32_t tag, Bytes room) {
  const std::span<std::byte> message = group.buffer(kShortMessageBytes);
  std::optional<ReceiveTurn> turn(std::in_place, group, from, tag);
  ReceiveTurn& mine = *turn;
  co_await mine;
  TransferHeader header;
  do {
    Message head = group.recv_header(from, tag, message);
    const std::size_t received = co_await head;
    header = read_header(message.first(received), group, from);
  } while (group.take_withdrawn(from, header.serial));
  turn.reset();
  Task<void> receiving = take_payload(group, from, header, message, room);
  co_await receiving;
}

Task<std::uint32_t> recv_any(GroupView& group, std::int32_t tag, Bytes room) {
  const std::span<std::byte> message = group.buffer(kShortMessageBytes);
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
    Message head = group.recv_header(from, tag, message);
    const std::size_t received = co_await head;
    const TransferHeader header = read_header(message.first(received), group, from);
    turn.reset();
    if (group.take_withdrawn(from, header.serial)) {
      continue;
    }
    Task<void> receiving = take_payload(group, from, header, message, room);
    co_await receiving;
    co_return from;
  }
}

}  // namespace gtopk::engine
