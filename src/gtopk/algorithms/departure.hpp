// Sparse, algorithms room: a list on its way to another rank, and when it has left the link.
//
// The kernel accepts a whole list at once and reports it sent. If the rank continued then, it would
// send to its next partner while its last list is still leaving. The two would share its link, the
// receiver of the older one would be late for the next round, and delays would build up
// (docs/performance.md). So the receiver acknowledges a long list with an empty message, and the
// sender waits for that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/parts_of_list.hpp"

namespace gtopk::sparse {

class [[nodiscard]] Departure {
 public:
  /// `parts`: the result of parts_of(), and the list's header.
  Departure(engine::GroupView& group, std::uint32_t to, std::uint32_t step,
            std::span<const std::byte> list, std::uint32_t parts)
      : acknowledgement_(expect_acknowledgement(group, to, step, list.size())) {
    const std::size_t bytes = part_bytes(list.size(), parts);
    for (std::uint32_t part = 0; part < parts; ++part) {
      parts_.at(part).emplace(
          group.send_over(part, to, step, part_at(list, bytes, part), chunk_of_part(part)));
    }
  }

  /// Ends when the list has left this rank, as far as can be known.
  [[nodiscard]] engine::Task<void> over() {
    for (std::optional<engine::Message>& part : parts_) {
      if (part) {
        engine::Message& leaving = *part;
        co_await leaving;
      }
    }
    if (acknowledgement_) {
      engine::Message& acknowledgement = *acknowledgement_;
      co_await acknowledgement;
    }
  }

  /// Called by the receiver of a list of `bytes` bytes, including its header; `from` is the sender.
  static void acknowledge(engine::GroupView& group, std::uint32_t from, std::uint32_t step,
                          std::size_t bytes) {
    if (bytes > kAcknowledgedBytes) {
      const engine::Message acknowledgement = group.send(from, step, {}, kAcknowledgement);
    }
  }

  /// The chunk of a part's tag: 0 for the first part, or for the whole list.
  [[nodiscard]] static std::uint32_t chunk_of_part(std::uint32_t part) {
    return part == 0 ? 0 : kAcknowledgement + part;
  }

 private:
  static constexpr std::uint32_t kAcknowledgement = 1;  // the acknowledgement's chunk

  static std::optional<engine::Message> expect_acknowledgement(engine::GroupView& group,
                                                               std::uint32_t to, std::uint32_t step,
                                                               std::size_t bytes) {
    if (bytes <= kAcknowledgedBytes) {
      return std::nullopt;
    }
    return group.recv(to, step, {}, kAcknowledgement);
  }

  std::optional<engine::Message> acknowledgement_;
  std::array<std::optional<engine::Message>, kMostParts> parts_;
};

}  // namespace gtopk::sparse
