// Sparse, algorithms room: a list on its way to another rank, and when it has left the link.
//
// The kernel takes a whole list at once and calls it sent. A rank that went on then would send to
// its next partner while its last list still leaves; both would share its link, whoever waits for
// the older one comes late to the next round, and the delays feed each other (docs/performance.md).
// So the receiver answers a long list by an empty message, and a rank goes on when it has that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::sparse {

/// Longer messages are acknowledged. Where alpha and not the link is what costs, an acknowledgement
/// would cost as much again.
inline constexpr std::size_t kAcknowledgedBytes = 16384;

class [[nodiscard]] Departure {
 public:
  Departure(engine::GroupView& group, std::uint32_t to, std::uint32_t step,
            std::span<const std::byte> list)
      : acknowledgement_(expect_acknowledgement(group, to, step, list)),
        list_(group.send(to, step, list)) {}

  /// Ends when the list has left this rank, as far as can be known.
  [[nodiscard]] engine::Task<void> over() {
    co_await list_;
    if (acknowledgement_) {
      engine::Message& acknowledgement = *acknowledgement_;
      co_await acknowledgement;
    }
  }

  /// By the receiver, who names the sender.
  static void acknowledge(engine::GroupView& group, std::uint32_t from, std::uint32_t step,
                          std::span<const std::byte> list) {
    if (list.size() > kAcknowledgedBytes) {
      const engine::Message acknowledgement = group.send(from, step, {}, kChunk);
    }
  }

 private:
  static constexpr std::uint32_t kChunk = 1;  // the list is chunk 0

  static std::optional<engine::Message> expect_acknowledgement(engine::GroupView& group,
                                                               std::uint32_t to, std::uint32_t step,
                                                               std::span<const std::byte> list) {
    if (list.size() <= kAcknowledgedBytes) {
      return std::nullopt;
    }
    return group.recv(to, step, {}, kChunk);
  }

  std::optional<engine::Message> acknowledgement_;
  engine::Message list_;
};

}  // namespace gtopk::sparse
