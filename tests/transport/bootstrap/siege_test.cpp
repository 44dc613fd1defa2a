// Tests of the rendezvous under siege: thousands of garbage, half-open and slow connections while
// the ranks of a job meet. The job meets, and nothing grows.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/transport/bootstrap/frame.hpp"
#include "src/transport/bootstrap/handshake.hpp"
#include "src/transport/bootstrap/meeting.hpp"
#include "src/transport/bootstrap/prefix_store.hpp"
#include "src/transport/bootstrap/rendezvous_server.hpp"
#include "src/transport/bootstrap/tcp_store.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk::bootstrap {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 60s;  // a watchdog's
constexpr int kConnections = support::kSanitized ? 1'500 : 10'000;
constexpr std::uint32_t kRanks = 4;
constexpr int kMeetings = 10;
constexpr std::size_t kGarbage = 10'000;  // arriving at once

/// Hostile connections of three kinds in turn: garbage, silence, and a request or a hello sent byte
/// by byte. All but garbage stay open until the end.
class Besiegers {
 public:
  explicit Besiegers(Endpoint server) : server_(std::move(server)) {}

  void come(int number) {
    Descriptor socket = connect_to(server_, kLimit);
    switch (number % 5) {
      case 0:
        say(socket, "GET / HTTP/1.1\r\n\r\n");
        return;
      case 1:
        say(socket, std::string(kGarbage, '\xff'));
        return;
      case 2:
        open_.push_back({.socket = std::move(socket), .rest = ""});
        break;
      case 3:
        open_.push_back({.socket = std::move(socket),
                         .rest = encode_request(Command::kSet, "a stranger's", "value")});
        break;
      default:
        open_.push_back(
            {.socket = std::move(socket), .rest = ClientHandshake("another secret").hello()});
    }
    if (number % 500 == 4) {
      go_on();
    }
  }

 private:
  struct Slow {
    Descriptor socket;
    std::string rest;  ///< to be sent, a byte at a time, except the last byte
  };

  static void say(const Descriptor& socket, std::string_view bytes) {
    // The server may already have closed it.
    static_cast<void>(send_all(socket, bytes, std::chrono::steady_clock::now()));
  }

  void go_on() {
    for (Slow& each : open_) {
      if (each.rest.size() < 2) {
        continue;
      }
      say(each.socket, each.rest.substr(0, 1));
      each.rest.erase(0, 1);
    }
  }

  Endpoint server_;
  std::vector<Slow> open_;
};

/// Meets as `rank` again and again, each time over a new connection, like a job that has just been
/// started.
void keep_meeting(const Endpoint& server, const std::string& secret, std::uint32_t rank) {
  for (int meeting = 0; meeting < kMeetings; ++meeting) {
    TcpStore store({server}, kLimit, secret);
    PrefixStore group(store, fmt::format("{}/", meeting));
    const auto roll = meeting::meet(group,
                                    {.group = "besieged",
                                     .rank = rank,
                                     .size = kRanks,
                                     .card = fmt::format("card {}", rank),
                                     .process = "a thread",
                                     .refusal = {}},
                                    kLimit);
    ASSERT_EQ(roll.size(), kRanks);
    EXPECT_EQ(roll.back(), fmt::format("card {}", kRanks - 1));
  }
}

class Siege : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Of, Siege, testing::Values("", "the secret of this job"),
                         [](const auto& instance) {
                           return instance.param.empty() ? "AnOpenDoor" : "AGuardedDoor";
                         });

TEST_P(Siege, LetsTheJobMeetAndKeepsNothing) {
  constexpr rlim_t kDescriptors = kConnections + 2'000;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < kDescriptors) {
    GTEST_SKIP() << "needs " << kDescriptors << " descriptors, this process may have "
                 << limit.rlim_max;
  }
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  RendezvousServer server(RendezvousListener(Endpoint{.host = "127.0.0.1", .port = 0}), GetParam());
  const Endpoint at{.host = "127.0.0.1", .port = server.port()};
  Besiegers besiegers(at);
  for (int number = 0; number < kConnections / 2; ++number) {
    besiegers.come(number);
  }
  std::vector<std::jthread> ranks;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] { keep_meeting(at, GetParam(), rank); });
  }
  for (int number = kConnections / 2; number < kConnections; ++number) {
    besiegers.come(number);
    const RendezvousServer::Load load = server.load();
    ASSERT_LE(load.connections, RendezvousServer::kMaxStrangers + std::size_t{2} * kRanks);
    // Garbage counts from its arrival until the end of the server's round.
    ASSERT_LT(load.bytes, RendezvousServer::kMaxStrangers * 2 * kGarbage);
  }
  ranks.clear();
  const auto end = std::chrono::steady_clock::now() + kLimit;
  const std::size_t few = RendezvousServer::kMaxStrangers * 100;
  while (server.load().bytes > few && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_LE(server.load().bytes, few);
  // A finished meeting leaves two small keys, strangers leave none.
  EXPECT_LE(server.load().keys, 2U * kMeetings);
}

}  // namespace
}  // namespace gtopk::bootstrap
