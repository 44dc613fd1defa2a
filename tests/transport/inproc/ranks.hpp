// Tests of the in-process transport: ranks that know one another, and their messages.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tests/transport/inproc/fabric.hpp"
#include "tests/transport/suite/message.hpp"

namespace gtopk::transport::inproc {

using test::Message;

/// P ranks; peer ids differ from ranks on purpose.
class Ranks {
 public:
  explicit Ranks(std::uint32_t ranks, FabricOptions options = {}) : fabric(ranks, options) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      ids_.emplace_back(ranks);
      for (std::uint32_t i = 1; i <= ranks; ++i) {
        const std::uint32_t other = (rank + i) % ranks;
        ids_[rank][other] = fabric.port(rank).add_peer(fabric.port(other).address());
      }
    }
  }

  [[nodiscard]] PeerId id(std::uint32_t rank, std::uint32_t of) const { return ids_[rank][of]; }
  Transport& port(std::uint32_t rank) { return fabric.port(rank); }

  Message& send(std::uint32_t from, std::uint32_t to, Tag tag, std::string text) {
    Message& call = calls_.emplace_back(std::move(text));
    port(from).send(id(from, to), tag, std::as_bytes(std::span(call.bytes)), call.request);
    return call;
  }
  Message& recv(std::uint32_t at, std::uint32_t from, Tag tag, std::size_t capacity = 64) {
    Message& call = calls_.emplace_back(std::string(capacity, '.'));
    port(at).recv(id(at, from), tag, std::as_writable_bytes(std::span(call.bytes)), call.request);
    return call;
  }

  /// Delivers and progresses, in seeded order, until nothing more happens at the current time.
  void settle() {
    for (;;) {
      bool moved = fabric.deliver_one();
      moved = port(static_cast<std::uint32_t>(fabric.pick(fabric.size()))).progress() || moved;
      if (moved) {
        continue;
      }
      for (std::uint32_t rank = 0; rank < fabric.size(); ++rank) {
        moved = port(rank).progress() || moved;
      }
      if (!moved) {
        return;
      }
    }
  }
  /// The same, and lets time pass until nothing is in flight.
  void settle_all() {
    do {
      settle();
    } while (fabric.advance_to_next());
  }

  Fabric fabric;

 private:
  std::vector<std::vector<PeerId>> ids_;
  std::deque<Message> calls_;
};

inline constexpr std::size_t kAllEager = SIZE_MAX;
inline constexpr std::size_t kNoneEager = 0;

inline Tag tag_of(std::uint32_t source, std::uint32_t step) {
  return collective_tag(0, source, 0, step);
}

}  // namespace gtopk::transport::inproc
