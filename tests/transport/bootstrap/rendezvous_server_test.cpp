// Tests of the rendezvous' server: strangers, clients that do not read and a lack of descriptors do
// not keep it from serving the others, and its memory is bounded.
#include "src/transport/bootstrap/rendezvous_server.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/transport/base/log.hpp"
#include "src/transport/bootstrap/tcp_store.hpp"
#include "tests/support/forked_ranks.hpp"

namespace gtopk::bootstrap {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 30s;  // a watchdog's

RendezvousListener loopback() {
  return RendezvousListener(Endpoint{.host = "127.0.0.1", .port = 0});
}

Endpoint at(const RendezvousServer& server) {
  return Endpoint{.host = "127.0.0.1", .port = server.port()};
}

TimePoint in(Duration duration) { return std::chrono::steady_clock::now() + duration; }

TEST(RendezvousServer, SurvivesStrangers) {
  RendezvousServer server(loopback());
  TcpStore store(at(server), kLimit);
  store.set("key", "value");
  std::vector<Descriptor> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(connect_to(at(server), kLimit));
    const Descriptor stranger = connect_to(at(server), kLimit);
    EXPECT_EQ(send_all(stranger, "GET / HTTP/1.1\r\n\r\n", in(kLimit)), Transfer::kDone);
    char byte = 0;
    EXPECT_EQ(receive_all(stranger, &byte, 1, in(kLimit)), Transfer::kClosed);
    // Half a request, then a disconnect.
    const Descriptor half = connect_to(at(server), kLimit);
    EXPECT_EQ(
        send_all(half, encode_request(Command::kSet, "half", "value").substr(0, 12), in(kLimit)),
        Transfer::kDone);
  }
  EXPECT_EQ(store.get("key", kLimit), "value");
}

TEST(RendezvousServer, StrangersNeverTakeAllItsPlaces) {
  RendezvousServer server(loopback());
  std::vector<Descriptor> silent;
  for (int i = 0; i < 1000; ++i) {
    silent.push_back(connect_to(at(server), kLimit));
  }
  std::vector<std::unique_ptr<TcpStore>> stores;
  for (int i = 0; i < 64; ++i) {
    stores.push_back(std::make_unique<TcpStore>(at(server), kLimit));
    EXPECT_EQ(stores.back()->add("clients", 1), i + 1);
  }
}

TEST(RendezvousServer, ClientGoneWhileWaiting_DisturbsNoOther) {
  RendezvousServer server(loopback());
  TcpStore store(at(server), kLimit);
  {
    const Descriptor impatient = connect_to(at(server), kLimit);
    EXPECT_EQ(send_all(impatient, encode_request(Command::kGet, "key", encode_integer(60'000)),
                       in(kLimit)),
              Transfer::kDone);
  }
  store.set("key", "value");
  EXPECT_EQ(store.get("key", kLimit), "value");
}

/// Waits for something that the server does on its own; false if the watchdog fires first.
template <typename Done>
[[nodiscard]] bool await(const Done& done) {
  const TimePoint end = in(kLimit);
  while (!done() && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  return done();
}

TEST(RendezvousServer, ClientNotReading_HoldsNoAnswersInMemory) {
  RendezvousServer server(loopback());
  TcpStore store(at(server), kLimit);
  const std::string large(kMaxValue, 'v');
  store.set("large", large);
  const std::size_t kept = large.size() + std::string_view("large").size();
  // Each of these requests 16 GiB in about one packet, and reads nothing.
  std::string requests;
  for (int i = 0; i < 4096; ++i) {
    requests += encode_request(Command::kGet, "large", encode_integer(1));
  }
  std::vector<Descriptor> greedy;
  for (int i = 0; i < 8; ++i) {
    greedy.push_back(connect_to(at(server), kLimit));
    EXPECT_EQ(send_all(greedy.back(), requests, in(kLimit)), Transfer::kDone);
  }
  // One of them has been read; the request that set the value counts until it has been answered.
  ASSERT_TRUE(await([&] {
    const std::size_t bytes = server.load().bytes;
    return bytes > kept && bytes < kept + kMaxValue / 2;
  }));
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(store.add("others go on", 1), i + 1);
    EXPECT_LT(server.load().bytes, kept + greedy.size() * requests.size() + 100);
  }
  // A replaced value counts until nobody is reading it any more.
  store.set("large", std::string(kMaxValue, 'w'));
  EXPECT_GE(server.load().bytes, kept + kMaxValue);
  EXPECT_EQ(store.get("large", kLimit), std::string(kMaxValue, 'w'));
  greedy.clear();
  ASSERT_TRUE(await([&] { return server.load().bytes <= kept + 100; }));
}

TEST(RendezvousServer, AnswersManyRequestsOfOnePacketInOrder) {
  RendezvousServer server(loopback());
  const Descriptor client = connect_to(at(server), kLimit);
  std::string requests;
  for (int i = 0; i < 2000; ++i) {
    requests += encode_request(Command::kAdd, "counter", encode_integer(1));
  }
  EXPECT_EQ(send_all(client, requests, in(kLimit)), Transfer::kDone);
  for (int i = 0; i < 2000; ++i) {
    std::string answer(kResponseHeader + 8, '\0');
    ASSERT_EQ(receive_all(client, answer.data(), answer.size(), in(kLimit)), Transfer::kDone);
    ASSERT_EQ(decode_integer(answer.substr(kResponseHeader)), i + 1);
  }
}

TEST(RendezvousServer, BoundsWhatHalfRequestsMayHold) {
  RendezvousServer server(loopback());
  TcpStore store(at(server), kLimit);
  const std::string half =
      encode_request(Command::kSet, "half", std::string(kMaxValue, 'v')).substr(0, kMaxValue);
  std::vector<Descriptor> half_done;
  const std::size_t enough = RendezvousServer::kMaxUnanswered / half.size() + 4;
  for (std::size_t i = 0; i < enough; ++i) {
    half_done.push_back(connect_to(at(server), kLimit));
    static_cast<void>(send_all(half_done.back(), half, in(kLimit)));
    EXPECT_LE(server.load().bytes, RendezvousServer::kMaxUnanswered + (std::size_t{1} << 20U));
  }
  store.set("key", "value");
  EXPECT_EQ(store.get("key", kLimit), "value");
}

TEST(RendezvousServer, ServesElevenHundredRanks) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 3000) {
    GTEST_SKIP() << "needs 3000 descriptors, this process may have " << limit.rlim_max;
  }
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  RendezvousServer server(loopback());
  std::vector<std::unique_ptr<TcpStore>> stores;
  for (int i = 0; i < 1100; ++i) {
    stores.push_back(std::make_unique<TcpStore>(at(server), kLimit));
    ASSERT_EQ(stores.back()->add("clients", 1), i + 1);
  }
  for (const auto& store : stores) {
    ASSERT_GT(store->add("clients", 1), 1100);
  }
}

/// Only one more descriptor can be opened in this process; with `for_good`, the limit cannot be
/// raised.
void leave_one_descriptor(bool for_good) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const Descriptor next(dup(0));
  limit.rlim_cur = static_cast<rlim_t>(next.get()) + 1;
  if (for_good) {
    limit.rlim_max = limit.rlim_cur;
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/// Plays `scene` in a process of its own, first as a rehearsal with spare descriptors: UBSan needs
/// two when it first sees an object of a type, and caches the type.
void play_short_of_descriptors(const std::function<void(bool rehearsal)>& scene) {
  test::run_forked_ranks(1, [&](test::ForkedRank&) {
    transport::log().warn("{}: what follows is {}", "rehearsal", 1);
    scene(true);
    scene(false);
  });
}

TEST(RendezvousServer, NoDescriptor_RestsUntilAClientLeaves) {
  play_short_of_descriptors([](bool rehearsal) {
    RendezvousServer server(loopback());
    std::vector<std::unique_ptr<TcpStore>> clients;
    for (int i = 0; i < 8; ++i) {
      clients.push_back(std::make_unique<TcpStore>(at(server), kLimit));
      clients.back()->set("key", "value");
    }
    ASSERT_TRUE(await([&] { return server.load().connections == clients.size(); }));
    if (!rehearsal) {
      leave_one_descriptor(true);
    }
    // It takes the last descriptor, so there is none to accept it with.
    const Descriptor waiting = connect_to(at(server), kLimit);
    EXPECT_EQ(
        send_all(waiting, encode_request(Command::kGet, "key", encode_integer(1000)), in(kLimit)),
        Transfer::kDone);
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t rounds = server.load().rounds;
    constexpr int kCalls = 2000;
    for (int i = 0; i < kCalls; ++i) {
      clients[0]->set("key", "value");
    }
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    // One or two rounds per call, plus ten per second to check for a free descriptor.
    EXPECT_LT(static_cast<double>(server.load().rounds - rounds),
              3 * kCalls + 20 * passed.count() + 20);
    clients.pop_back();
    std::string answer(kResponseHeader + 5, '\0');
    EXPECT_EQ(receive_all(waiting, answer.data(), answer.size(), in(kLimit)), Transfer::kDone);
    EXPECT_EQ(answer.substr(kResponseHeader), "value");
  });
}

TEST(RendezvousServer, NoDescriptor_DropsStrangerToServeRank) {
  play_short_of_descriptors([](bool rehearsal) {
    RendezvousServer server(loopback());
    TcpStore store(at(server), kLimit);
    store.set("key", "value");
    const Descriptor stranger = connect_to(at(server), kLimit);
    ASSERT_TRUE(await([&] { return server.load().connections == 2; }));
    if (!rehearsal) {
      leave_one_descriptor(true);
    }
    TcpStore late(at(server), kLimit);
    EXPECT_EQ(late.get("key", kLimit), "value");
    char byte = 0;
    if (rehearsal) {
      EXPECT_EQ(receive_all(stranger, &byte, 1, in(0s)), Transfer::kTimedOut);  // may remain
    } else {
      EXPECT_EQ(receive_all(stranger, &byte, 1, in(kLimit)), Transfer::kClosed);
    }
  });
}

TEST(RendezvousServer, ClientWithoutDescriptorsSaysSoAtOnce) {
  play_short_of_descriptors([](bool rehearsal) {
    RendezvousServer server(loopback());
    if (!rehearsal) {
      leave_one_descriptor(true);
    }
    const Descriptor last(dup(0));
    TcpStore store(at(server), kLimit);
    try {
      store.set("key", "value");
      EXPECT_TRUE(rehearsal);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  testing::HasSubstr("this process has no file descriptors left (limit "));
    }
  });
}

TEST(RendezvousServer, NoDescriptor_RaisesSoftLimit) {
  play_short_of_descriptors([](bool rehearsal) {
    RendezvousServer server(loopback());
    rlimit before{};
    if (!rehearsal) {
      leave_one_descriptor(false);
    }
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    TcpStore store(at(server), kLimit);  // its socket is the last one allowed
    store.set("key", "value");
    rlimit after{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
    EXPECT_TRUE(rehearsal || after.rlim_cur > before.rlim_cur);
  });
}

}  // namespace
}  // namespace gtopk::bootstrap
