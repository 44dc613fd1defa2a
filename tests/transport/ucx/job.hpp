// Test support: a forked rank's transport that knows those of all others.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/forked_ranks.hpp"
#include "tests/transport/ucx/mesh.hpp"

namespace gtopk::test {

/// From here on, what UCX allocates is leaked on purpose: it is reachable only from memory that
/// LeakSanitizer does not scan.
inline void leave_allocations_behind() {
#if defined(__SANITIZE_ADDRESS__)
  __lsan_disable();
#endif
}

/// One rank's transport, which knows all others.
struct Job {
  /// `before_ucx` runs once the rank has connected to the store, before it starts UCX.
  explicit Job(
      ForkedRank& rank, const std::function<void()>& before_ucx = [] {})
      : store(rank.store()), rank(rank.rank()), size(rank.size()) {
    store->add("started", 1);  // connects
    before_ucx();
    transport = transport::make_ucx_transport();
    store->set(fmt::format("card/{}", rank.rank()), transport->card());
    store->set(fmt::format("address/{}", rank.rank()), transport->address());
    for (int other = 0; other < size; ++other) {
      peers.push_back(transport->add_peer(store->get(fmt::format("card/{}", other), kWatchdog)));
      transport->set_address(peers.back(), store->get(fmt::format("address/{}", other), kWatchdog));
    }
  }

  template <typename Done>
  bool until(const Done& done, std::chrono::nanoseconds limit = kWatchdog) {
    return progress_until(
        [this] {
          const bool moved = transport->progress();
          if (!moved) {
            transport->wait(std::chrono::milliseconds(1));
          }
          return moved;
        },
        done, limit);
  }

  /// Progresses until nothing moves on its own any more; true if anything moved.
  bool settle() const {
    constexpr int kStill = 1000;
    bool moved = false;
    for (int still = 0; still < kStill; ++still) {
      if (transport->progress()) {
        moved = true;
        still = 0;
      } else {
        sched_yield();
      }
    }
    return moved;
  }

  /// Progresses until the parent says something, or kills it.
  void serve(ForkedRank& self) {
    pollfd channel = {.fd = self.channel(), .events = POLLIN, .revents = 0};
    ASSERT_TRUE(until([&] { return poll(&channel, 1, 0) != 0; }));
  }
  /// Settles whenever the parent asks for it, and answers whether anything moved.
  void settle_on_request(ForkedRank& self) const {
    while (self.hear() == "settle") {
      self.say(settle() ? "moved" : "still");
    }
  }

  /// Waits until all ranks have come this far. Progresses meanwhile, as a peer may depend on it.
  void meet(const std::string& name) {
    const std::int64_t all = size;
    std::int64_t here = store->add(name, 1);
    ASSERT_TRUE(until([&] { return (here = store->add(name, 0)) >= all; }));
  }

  /// Leaves in order.
  void leave() {
    for (const PeerId peer : peers) {
      transport->expect_departure(peer);
    }
    meet("leave");
    transport->close(kWatchdog);
  }

  std::unique_ptr<KeyValueStore> store;
  std::unique_ptr<Transport> transport;
  int rank;
  int size;
  std::vector<PeerId> peers;
};

/// Nothing here takes that long unless it never comes: UCX itself checks shared memory every 20 s,
/// and never notices the end of a TCP connection that some process still holds.
inline constexpr auto kSoon = std::chrono::seconds(15);

/// One byte each way.
inline void exchange_a_message(Job& job, PeerId other) {
  Message out("x");
  Message in(std::size_t{1});
  in.recv(*job.transport, other, 1);
  out.send(*job.transport, other, 1);
  ASSERT_TRUE(job.until([&] { return in.done() && out.done(); }));
}

/// The failures that are reported next; none if none come soon.
inline std::vector<transport::PeerFailure> next_failures(Job& job) {
  std::vector<transport::PeerFailure> failures;
  EXPECT_TRUE(job.until(
      [&] {
        failures = job.transport->take_failures();
        return !failures.empty();
      },
      kSoon));
  return failures;
}

/// Waits until the victim's death has been reported, and has ended the receive.
inline void expect_to_be_told(Job& job, PeerId victim, Message& waiting) {
  std::vector<transport::PeerFailure> failures;
  ASSERT_TRUE(job.until(
      [&] {
        for (auto& failure : job.transport->take_failures()) {
          failures.push_back(std::move(failure));
        }
        return !failures.empty() && waiting.done();
      },
      kSoon));
  EXPECT_EQ(waiting.request.status(), Status::kPeerFailed);
  EXPECT_EQ(waiting.completions, 1);
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].peer, victim);
  EXPECT_FALSE(failures[0].reason.empty());
  EXPECT_FALSE(job.transport->connected(victim));
}

}  // namespace gtopk::test
