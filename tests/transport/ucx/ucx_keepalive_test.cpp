// Keepalives: both ends of every connection send them, as UCX's settings say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/transport/ucx/config.hpp"
#include "tests/transport/ucx/mesh.hpp"

namespace gtopk::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::Field;
using testing::Ge;
using testing::SizeIs;

struct Connected {
  int keepalive = 0;
  int idle = 0;
  int interval = 0;
  int probes = 0;
};

/// The established TCP connections of this process, each of which has both ends here.
std::vector<Connected> connected() {
  std::vector<Connected> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    const auto get = [descriptor](int level, int option) {
      int value = 0;
      socklen_t length = sizeof value;
      return getsockopt(descriptor, level, option, &value, &length) == 0 ? value : -1;
    };
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        get(IPPROTO_TCP, TCP_KEEPIDLE) >= 0) {
      found.push_back({get(SOL_SOCKET, SO_KEEPALIVE), get(IPPROTO_TCP, TCP_KEEPIDLE),
                       get(IPPROTO_TCP, TCP_KEEPINTVL), get(IPPROTO_TCP, TCP_KEEPCNT)});
    }
  }
  return found;
}

std::vector<Connected> after_a_message(
    const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::pair<std::string, std::string>> settings = {{"TLS", "tcp,self"}};
  settings.insert(settings.end(), more.begin(), more.end());
  Mesh mesh(2, {.settings = settings, .connections = 1});
  Message received(std::size_t{8});
  Message sent(pattern(8, 1));
  received.recv(mesh[1], mesh.ids[1][0], 1);
  sent.send(mesh[0], mesh.ids[0][1], 1);
  EXPECT_TRUE(
      progress_until([&] { return mesh.move(); }, [&] { return sent.done() && received.done(); }));
  return connected();
}

TEST(UcxKeepalive, IsSentByBothEndsOfAConnection) {
  const std::vector<Connected> ends =
      after_a_message({{"TCP_KEEPIDLE", "7.5s"}, {"TCP_KEEPINTVL", "3.5s"}, {"TCP_KEEPCNT", "4"}});
  EXPECT_THAT(ends, SizeIs(Ge(2U)));
  EXPECT_THAT(ends, Each(AllOf(Field(&Connected::keepalive, 1), Field(&Connected::idle, 7),
                               Field(&Connected::interval, 3), Field(&Connected::probes, 4))));
}

TEST(UcxKeepalive, IsSentByBothEndsUnlessItIsSwitchedOff) {
  EXPECT_THAT(after_a_message({}), AllOf(SizeIs(Ge(2U)), Each(Field(&Connected::keepalive, 1))));
  EXPECT_THAT(after_a_message({{"TCP_KEEPIDLE", "inf"}}),
              AllOf(SizeIs(Ge(2U)), Each(Field(&Connected::keepalive, 0))));
}

TEST(UcxKeepalive, IsAsUcxsSettingsSayFromWhereverTheyCome) {
  const transport::Keepalive usual = *transport::UcxConfig({}).keepalive();
  EXPECT_EQ(usual.idle, 10s);
  EXPECT_EQ(usual.interval, 2s);
  EXPECT_EQ(usual.probes, std::nullopt);
  setenv("UCX_TCP_KEEPIDLE", "1m", 1);
  EXPECT_EQ(transport::UcxConfig({}).keepalive()->idle, 60s);
  setenv("GTOPK_UCX_TCP_KEEPIDLE", "30s", 1);
  setenv("GTOPK_UCX_TCP_KEEPCNT", "5", 1);
  EXPECT_EQ(transport::UcxConfig({}).keepalive()->idle, 30s);
  EXPECT_EQ(transport::UcxConfig({}).keepalive()->probes, 5);
  setenv("GTOPK_UCX_TCP_KEEPCNT", "inf", 1);
  EXPECT_FALSE(transport::UcxConfig({}).keepalive());
  unsetenv("UCX_TCP_KEEPIDLE");
  unsetenv("GTOPK_UCX_TCP_KEEPIDLE");
  unsetenv("GTOPK_UCX_TCP_KEEPCNT");
}

TEST(UcxKeepalive, TimesAreReadAsUcxReadsThem) {
  for (const auto& [text, seconds] : {std::pair{"10s", 10s},
                                      {"10", 10s},
                                      {"10000000.00us", 10s},
                                      {"1.5m", 90s},
                                      {"2500ms", 2s},
                                      {"1ms", 1s},
                                      {"100000s", 32767s}}) {
    EXPECT_EQ(transport::seconds_of(text), seconds) << text;
  }
  for (const char* const text : {"", "auto", "inf", "s", "10 s", "-1s", "0s", "10h"}) {
    EXPECT_EQ(transport::seconds_of(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace gtopk::test
