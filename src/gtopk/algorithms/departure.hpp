// Sparse, algorithms: a long message that is sent to another rank in parts: when it has left the
// link, and the arrival of its parts.
//
// The kernel accepts a whole message at once and reports it as sent. If the rank continued then, it
// would send to its next partner while its last message is still leaving. The two messages would
// share its link, the receiver of the older one would be late for the next round, and delays would
// build up (docs/performance.md). So the receiver acknowledges a long message with an empty one,
// and the sender waits for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/parts.hpp"

namespace gtopk::sparse {

class [[nodiscard]] Departure {
 public:
  /// Begins a departure. `parts` is the result of parts_of().
  Departure(engine::GroupView& group, std::uint32_t to, std::uint32_t step,
            std::span<const std::byte> message, std::uint32_t parts)
      : acknowledgement_(expect_acknowledgement(group, to, step, message.size())) {
    const std::size_t bytes = part_bytes(message.size(), parts);
    first_.emplace(send(group, to, step, part_at(message, bytes, 0), 0, parts));
    others_.reserve(parts - 1);
    for (std::uint32_t part = 1; part < parts; ++part) {
      others_.push_back(send(group, to, step, part_at(message, bytes, part), part, parts));
    }
  }

  /// Ends when the message has left this rank, as far as can be known.
  [[nodiscard]] engine::Task<void> over() {
    engine::Message& first = *first_;
    co_await first;
    for (engine::Message& part : others_) {
      co_await part;
    }
    if (acknowledgement_) {
      engine::Message& acknowledgement = *acknowledgement_;
      co_await acknowledgement;
    }
  }

  /// Receives the parts after the first, which had `first` bytes; returns the bytes of all. Throws
  /// Error{kMismatch} for a part of another length.
  [[nodiscard]] static engine::Task<std::size_t> receive_rest(
      engine::GroupView& group, std::uint32_t from, std::uint32_t step,
      std::span<std::byte> message, std::size_t first, std::uint32_t parts) {
    std::vector<engine::Message> incoming;
    incoming.reserve(parts - 1);
    for (std::uint32_t part = 1; part < parts; ++part) {
      incoming.push_back(
          group.recv(from, step, part_at(message, first, part), chunk_of_part(part)));
    }
    std::size_t received = first;
    for (std::uint32_t part = 1; part < parts; ++part) {
      engine::Message& expected = incoming[part - 1];
      const std::size_t bytes = co_await expected;
      if (bytes != first && part + 1 < parts) {
        throw Error(ErrorKind::kMismatch,
                    fmt::format("{} sent a damaged list: part {} of {} has {} bytes, the first {}",
                                group.member(from), part, parts, bytes, first));
      }
      received += bytes;
    }
    co_return received;
  }

  /// Called by the receiver of a message of `bytes` bytes, including its header; `from` is the
  /// sender.
  static void acknowledge(engine::GroupView& group, std::uint32_t from, std::uint32_t step,
                          std::size_t bytes) {
    if (bytes > kAcknowledgedBytes) {
      const engine::Message acknowledgement = group.send(from, step, {}, kAcknowledgement);
    }
  }

 private:
  static constexpr std::uint32_t kAcknowledgement = 1;  // the acknowledgement's chunk

  /// The chunk of a part's tag: 0 for the first part, or for the whole message.
  [[nodiscard]] static std::uint32_t chunk_of_part(std::uint32_t part) {
    return part == 0 ? 0 : kAcknowledgement + part;
  }

  static engine::Message send(engine::GroupView& group, std::uint32_t to, std::uint32_t step,
                              std::span<const std::byte> data, std::uint32_t part,
                              std::uint32_t parts) {
    return group.send_over(parts == 1 ? 0 : transport::kAnyConnection, to, step, data,
                           chunk_of_part(part));
  }

  static std::optional<engine::Message> expect_acknowledgement(engine::GroupView& group,
                                                               std::uint32_t to, std::uint32_t step,
                                                               std::size_t bytes) {
    if (bytes <= kAcknowledgedBytes) {
      return std::nullopt;
    }
    return group.recv(to, step, {}, kAcknowledgement);
  }

  std::optional<engine::Message> acknowledgement_;
  std::optional<engine::Message> first_;
  std::vector<engine::Message> others_;
};

}  // namespace gtopk::sparse
