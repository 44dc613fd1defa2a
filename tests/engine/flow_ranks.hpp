// Engine tests: ranks whose messages may run only a small window ahead of their receives.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/engine/flow_control.hpp"
#include "tests/engine/messages.hpp"
#include "tests/support/calls.hpp"

namespace gtopk {

constexpr std::uint64_t kWindow = 64UL << 10U;

/// Ranks with a small window.
class FlowRanks : public support::InprocRanks {
 public:
  FlowRanks(std::uint32_t ranks, std::uint64_t seed, std::uint64_t window = kWindow)
      : FlowRanks(ranks, support::uneven_network(seed), window) {}
  FlowRanks(std::uint32_t ranks, FabricOptions options, std::uint64_t window = kWindow)
      : support::InprocRanks(ranks, options) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      engine(rank).flow_control().set_window(window);
    }
  }

  [[nodiscard]] std::size_t held(std::uint32_t rank) { return engine(rank).flow_control().held(); }
  [[nodiscard]] std::uint64_t ahead(std::uint32_t from, std::uint32_t to) const {
    return group(from)->credits[to].ahead;
  }
  /// What the sender still counts of messages whose credit is not on its way.
  [[nodiscard]] std::uint64_t unreturned(std::uint32_t from, std::uint32_t to) const {
    return ahead(from, to) - group(to)->credits[from].matched;
  }
  [[nodiscard]] std::uint64_t messages(std::uint32_t rank, transport::TagKind kind) {
    return fabric().counters(rank).of(kind).messages_sent;
  }
  /// Bytes of point-to-point messages that the rank has sent.
  [[nodiscard]] std::uint64_t sent_bytes(std::uint32_t rank) {
    const auto& counters = fabric().counters(rank);
    return counters.of(transport::TagKind::kPointToPoint).bytes_sent +
           counters.of(transport::TagKind::kPayload).bytes_sent;
  }
};

/// Messages of various sizes with the same first bytes nowhere, and buffers for them elsewhere.
struct Messages {
  explicit Messages(const std::vector<std::size_t>& sizes) {
    for (const std::size_t bytes : sizes) {
      const auto number = static_cast<std::byte>(sent.size() % 251);
      received.emplace_back(bytes);
      sent.emplace_back(bytes, number);
    }
  }
  Messages(std::size_t count, std::size_t bytes)
      : Messages(std::vector<std::size_t>(count, bytes)) {}

  void send_all(support::InprocRanks& ranks, std::uint32_t from, std::uint32_t to,
                std::int32_t tag = kTag) {
    for (const reference::Bytes& message : sent) {
      sends.push_back(ranks.submit(from, gtopk::send(message, to, tag)));
    }
  }
  void receive_all(support::InprocRanks& ranks, std::uint32_t from, std::uint32_t to,
                   std::int32_t tag = kTag) {
    for (reference::Bytes& buffer : received) {
      receives.push_back(ranks.submit(to, gtopk::recv(buffer, from, tag)));
    }
  }
  void expect_arrived() const {
    for (const auto* endings : {&sends, &receives}) {
      for (const support::SharedEnding& ending : *endings) {
        ASSERT_TRUE(ending->good()) << ending->text();
      }
    }
    EXPECT_TRUE(sent == received);
  }
  [[nodiscard]] bool all_received() const {
    return std::ranges::all_of(receives,
                               [](const support::SharedEnding& ending) { return ending->ended; });
  }
  [[nodiscard]] std::size_t sends_ended() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        sends, [](const support::SharedEnding& ending) { return ending->ended; }));
  }

  std::vector<reference::Bytes> sent;
  std::vector<reference::Bytes> received;
  std::vector<support::SharedEnding> sends;
  std::vector<support::SharedEnding> receives;
};

/// More of them than fit into a window.
constexpr std::size_t many_of(std::size_t bytes) {
  return 4 * kWindow / (engine::FlowControl::kPerMessage + bytes) + 3;
}

inline support::SharedEnding send_with_tag(
    support::InprocRanks& ranks, const reference::Bytes& data, std::int32_t tag,
    transport::Duration timeout = support::InprocRanks::kTimeout) {
  engine::OperationSpec spec(gtopk::send(data, 1, tag));
  spec.timeout = timeout;
  return ranks.submit(0, std::move(spec));
}

inline support::SharedEnding receive_with_tag(
    support::InprocRanks& ranks, reference::Bytes& buffer, std::int32_t tag,
    transport::Duration timeout = support::InprocRanks::kTimeout) {
  engine::OperationSpec spec(gtopk::recv(buffer, 0, tag));
  spec.timeout = timeout;
  return ranks.submit(1, std::move(spec));
}

inline support::SharedEnding send_briefly(
    support::InprocRanks& ranks, const reference::Bytes& data,
    transport::Duration timeout = std::chrono::milliseconds(500)) {
  return send_with_tag(ranks, data, kTag, timeout);
}

}  // namespace gtopk
