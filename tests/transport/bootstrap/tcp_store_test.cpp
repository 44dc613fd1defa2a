// Tests of the plain TCP rendezvous: its clients meet, whoever else connects, and no wait is
// endless.
#include "src/transport/bootstrap/tcp_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <latch>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "gtopk/launch.hpp"
#include "src/transport/bootstrap/own_addresses.hpp"
#include "tests/support/program.hpp"
#include "tests/transport/bootstrap/error_of.hpp"

namespace gtopk::bootstrap {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto kLimit = 30s;  // a watchdog's

RendezvousListener loopback() {
  return RendezvousListener(Endpoint{.host = "127.0.0.1", .port = 0});
}

Endpoint at(const RendezvousServer& server) {
  return Endpoint{.host = "127.0.0.1", .port = server.port()};
}

TEST(TcpStore, GetReturnsWhatAnotherClientSet) {
  RendezvousServer server(loopback());
  TcpStore one(at(server), kLimit);
  TcpStore two(at(server), kLimit);
  const std::string value("with a \0 inside", 15);
  one.set("key", value);
  EXPECT_EQ(two.get("key", kLimit), value);
  one.set("key", "");
  EXPECT_EQ(two.get("key", kLimit), "");
}

TEST(TcpStore, ReachesAServerUnderEachOfItsHostsAddresses) {
  RendezvousServer server(RendezvousListener(Endpoint{.host = "", .port = 0}));
  const std::vector<std::string> addresses = own_addresses();
  ASSERT_FALSE(addresses.empty());
  for (const std::string& address : addresses) {
    TcpStore store(Endpoint{.host = address, .port = server.port()}, kLimit);
    EXPECT_EQ(store.add("connected under " + address, 1), 1);
  }
}

TEST(TcpStore, TriesTheNextWayToItsServerWhereOneLeadsNowhere) {
  RendezvousServer server(loopback());
  const std::uint16_t closed = test::free_port();
  const Endpoint nobody{.host = "127.0.0.1", .port = closed};
  // 198.51.100.0/24 is reserved for documentation: packets are refused here, or lost on the way.
  const Endpoint nowhere{.host = "198.51.100.1", .port = server.port()};
  TcpStore store({nobody, nowhere, at(server)}, kLimit);
  EXPECT_EQ(store.add("here", 1), 1);
}

TEST(TcpStore, SaysWhatCameOfEachWayToItsServer) {
  const std::uint16_t closed = test::free_port();
  TcpStore store({{.host = "127.0.0.1", .port = closed}, {.host = "::1", .port = closed}}, 50ms);
  EXPECT_THAT(error_of([&] { store.set("key", ""); }),
              AllOf(HasSubstr(fmt::format("127.0.0.1:{}: Connection refused", closed)),
                    HasSubstr(fmt::format("[::1]:{}: ", closed)), HasSubstr("within 0.05 s")));
}

TEST(TcpStore, GetWaitsForALaterSet) {
  RendezvousServer server(loopback());
  std::latch asking(1);
  std::string got;
  std::thread reader([&] {
    TcpStore store(at(server), kLimit);
    store.set("other", "connected");
    asking.count_down();
    got = store.get("key", kLimit);
  });
  asking.wait();
  TcpStore(at(server), kLimit).set("key", "value");
  reader.join();
  EXPECT_EQ(got, "value");
}

TEST(TcpStore, GetOfAKeyThatNobodySetsNamesKeyAndSeconds) {
  RendezvousServer server(loopback());
  TcpStore store(at(server), kLimit);
  const std::string error = error_of([&] { static_cast<void>(store.get("address/3", 50ms)); });
  EXPECT_THAT(error, HasSubstr("'address/3'"));
  EXPECT_THAT(error, HasSubstr("0.05 s"));
  // The late answer is not taken for that of the next request.
  store.set("address/3", "late");
  store.set("address/4", "four");
  EXPECT_EQ(store.get("address/4", kLimit), "four");
}

TEST(TcpStore, FindWaitsNoLongerThanItIsTold) {
  RendezvousServer server(loopback());
  TcpStore store(at(server), kLimit);
  EXPECT_EQ(store.find("key", 0s), std::nullopt);
  EXPECT_EQ(store.find("key", 20ms), std::nullopt);
  store.set("key", "value");
  EXPECT_EQ(store.find("key", 0s), "value");
}

TEST(TcpStore, RemovedKeysAreAsIfNeverSet) {
  RendezvousServer server(loopback());
  TcpStore store(at(server), kLimit);
  store.set("key", "value");
  EXPECT_EQ(store.add("key", 3), 3);
  store.remove("key");
  store.remove("never there");
  EXPECT_EQ(store.find("key", 0s), std::nullopt);
  EXPECT_EQ(server.load().keys, 0U);
  EXPECT_LT(server.load().bytes, 100U);  // the last request may still count
  EXPECT_EQ(store.add("key", 1), 1);
}

TEST(TcpStore, MayBeUsedByManyThreadsAtOnce) {
  RendezvousServer server(loopback());
  TcpStore store(at(server), kLimit);
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&store, thread] {
        for (int round = 0; round < 50; ++round) {
          const std::string key = std::to_string(thread) + "/" + std::to_string(round);
          store.set(key, key);
          EXPECT_EQ(store.get(key, kLimit), key);
        }
      });
    }
  }
}

TEST(TcpStore, AddCountsEveryCallOfEveryClient) {
  RendezvousServer server(loopback());
  constexpr int kClients = 8;
  constexpr int kCalls = 50;
  std::vector<std::vector<std::int64_t>> sums(kClients);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : sums) {
      threads.emplace_back([&server, &mine] {
        TcpStore store(at(server), kLimit);
        for (int i = 0; i < kCalls; ++i) {
          mine.push_back(store.add("counter", 1));
        }
      });
    }
  }
  std::set<std::int64_t> all;
  for (const auto& mine : sums) {
    all.insert(mine.begin(), mine.end());
  }
  EXPECT_EQ(all.size(), kClients * kCalls);
  EXPECT_EQ(*all.rbegin(), kClients * kCalls);
  EXPECT_EQ(TcpStore(at(server), kLimit).add("counter", -400), 0);
}

TEST(TcpStore, SixtyFourRanksExchangeTheirAddresses) {
  RendezvousServer server(loopback());
  constexpr int kRanks = 64;
  std::vector<int> met(kRanks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        TcpStore store(at(server), kLimit);
        store.set("address/" + std::to_string(rank), std::string(300, static_cast<char>(rank)));
        for (int other = 0; other < kRanks; ++other) {
          const std::string value = store.get("address/" + std::to_string(other), kLimit);
          met[static_cast<std::size_t>(rank)] +=
              value == std::string(300, static_cast<char>(other)) ? 1 : 0;
        }
      });
    }
  }
  EXPECT_THAT(met, testing::Each(kRanks));
}

TEST(TcpStore, ClientMayStartBeforeItsServer) {
  // The port is bound, so that it stays free for the server, but nothing answers on it yet.
  RendezvousListener listener = loopback();
  const Endpoint endpoint{.host = "127.0.0.1", .port = listener.port()};
  std::jthread client([&] { TcpStore(endpoint, kLimit).set("key", "early"); });
  RendezvousServer server(std::move(listener));
  EXPECT_EQ(TcpStore(endpoint, kLimit).get("key", kLimit), "early");
}

TEST(TcpStore, NoServerIsAnErrorThatNamesTheAddress) {
  const std::uint16_t port = test::free_port();
  TcpStore store(Endpoint{.host = "127.0.0.1", .port = port}, 50ms);
  const std::string error = error_of([&] { store.set("key", "value"); });
  EXPECT_THAT(error, HasSubstr("127.0.0.1:" + std::to_string(port)));
  EXPECT_THAT(error, HasSubstr("within 0.05 s"));
}

TEST(TcpStore, ServerThatGoesAwayIsAnErrorAndNotAHang) {
  auto server = std::make_unique<RendezvousServer>(loopback());
  TcpStore store(at(*server), kLimit);
  store.set("key", "value");
  server.reset();
  EXPECT_THAT(error_of([&] { static_cast<void>(store.get("none", kLimit)); }),
              HasSubstr("get 'none'"));
}

TEST(JoinRendezvous, RankZeroServesUntilTheOthersHaveLeft) {
  LaunchEnvironment environment{
      .rank = 0, .world_size = 2, .host = "localhost", .port = test::free_port()};
  auto first = join_rendezvous(environment, kLimit);
  environment.rank = 1;
  auto second = join_rendezvous(environment, kLimit);
  second->set("from 1", "hello");
  EXPECT_EQ(first->get("from 1", kLimit), "hello");
  first->set("from 0", "bye");
  std::jthread leaving([&] { first.reset(); });
  EXPECT_EQ(second->get("from 0", kLimit), "bye");
  second.reset();
}

LaunchEnvironment job_of_two() {
  return {.rank = 0, .world_size = 2, .host = "localhost", .port = test::free_port()};
}

LaunchEnvironment as_rank(LaunchEnvironment environment, std::uint32_t rank) {
  environment.rank = rank;
  return environment;
}

void leave_and_join_again() {
  const LaunchEnvironment environment = job_of_two();
  for (int round = 0; round < 3; ++round) {
    auto first = join_rendezvous(environment, kLimit);
    auto second = join_rendezvous(as_rank(environment, 1), kLimit);
    second->set("from 1", "hello");
    // Rank 1 is there again before rank 0 has left.
    auto again = join_rendezvous(as_rank(environment, 1), kLimit);
    const auto key = "round " + std::to_string(round);
    again->set("from 1", "here again");
    std::string got;  // a client makes one call at a time
    std::jthread waiting([&] { got = again->get(key, kLimit); });
    second.reset();
    first.reset();
    first = join_rendezvous(environment, kLimit);
    EXPECT_EQ(first->get("from 1", kLimit), "here again");
    first->set(key, "yes");
    waiting.join();
    EXPECT_EQ(got, "yes");
    again.reset();
  }
}

TEST(JoinRendezvous, RanksLeaveAndJoinAgainInAnyOrder) { leave_and_join_again(); }

// The server that others have not left yet is found again by its secret.
TEST(JoinRendezvous, RanksWithASecret_LeaveAndJoinAgainInAnyOrder) {
  setenv("GTOPK_SECRET", "one of at least sixteen bytes", 1);
  leave_and_join_again();
  unsetenv("GTOPK_SECRET");
}

TEST(JoinRendezvous, ThePortIsFreeWhenNobodyIsLeft) {
  const LaunchEnvironment environment = job_of_two();
  auto first = join_rendezvous(environment, kLimit);
  auto second = join_rendezvous(as_rank(environment, 1), kLimit);
  second->set("key", "value");
  second.reset();
  EXPECT_EQ(first->get("key", kLimit), "value");
  first.reset();
  auto anew = join_rendezvous(environment, kLimit);  // the one before or another, and not an error
  anew->set("key", "other");
  EXPECT_EQ(anew->get("key", kLimit), "other");
}

}  // namespace
}  // namespace gtopk::bootstrap
