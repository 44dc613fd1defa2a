// Tests of several connections to a peer: which bytes go over which is the kernel's to say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/transport/ucx/connections.hpp"
#include "tests/transport/ucx/mesh.hpp"

namespace gtopk::test {
namespace {

using gtopk::Error;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

/// What each TCP connection of this process has sent, of those that have sent more than UCX itself
/// says when it makes one. What a busy kernel sent twice counts once.
std::vector<std::uint64_t> bytes_sent() {
  constexpr std::uint64_t kGreetings = 10'000;
  std::vector<std::uint64_t> sent;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    tcp_info info{};
    socklen_t length = sizeof info;
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) {
      continue;
    }
    const std::uint64_t once = info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
    if (once > kGreetings) {
      sent.push_back(once);
    }
  }
  return sent;
}

/// Of those that have sent something, the one with the highest descriptor.
bool shut_down_one_connection() {
  int chosen = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    tcp_info info{};
    socklen_t length = sizeof info;
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
        info.tcpi_bytes_sent > 0) {
      chosen = std::max(chosen, descriptor);
    }
  }
  return chosen >= 0 && shutdown(chosen, SHUT_RDWR) == 0;
}

Mesh two(const char* transports, std::uint32_t connections) {
  return Mesh(2, {.settings = {{"TLS", transports}}, .connections = connections});
}

/// 24 messages of 100,000 bytes from the first to the second, over the connections by turns or over
/// whichever is free.
void send_messages(Mesh& mesh, bool by_turns) {
  constexpr std::uint32_t kMessages = 24;
  std::vector<std::unique_ptr<Message>> messages;
  for (std::uint32_t number = 0; number < kMessages; ++number) {
    messages.push_back(std::make_unique<Message>(std::size_t{100'000}));
    messages.back()->recv(mesh[1], mesh.ids[1][0], number);
    messages.push_back(std::make_unique<Message>(pattern(100'000, number)));
    messages.back()->request.connection = by_turns ? number : transport::kAnyConnection;
    messages.back()->send(mesh[0], mesh.ids[0][1], number);
  }
  ASSERT_TRUE(progress_until([&] { return mesh.move(); },
                             [&] {
                               return std::ranges::all_of(
                                   messages, [](const auto& each) { return each->done(); });
                             }));
  for (std::uint32_t number = 0; number < kMessages; ++number) {
    EXPECT_EQ(messages[std::size_t{2} * number]->status(), Status::kOk);
    EXPECT_TRUE(messages[std::size_t{2} * number]->bytes == pattern(100'000, number)) << number;
  }
}

TEST(UcxConnections, EachCarriesTheMessagesThatAreDealtToIt) {
  for (const std::uint32_t connections : {1U, 2U, 4U}) {
    SCOPED_TRACE(connections);
    Mesh mesh = two("tcp,self", connections);
    send_messages(mesh, true);
    EXPECT_EQ(mesh[0].connections(mesh.ids[0][1]), connections);
    const std::uint64_t share = 2'400'000 / connections;
    EXPECT_THAT(bytes_sent(), SizeIs(connections));
    EXPECT_THAT(bytes_sent(), Each(testing::AllOf(testing::Ge(share), testing::Lt(share * 1.02))));
  }
}

// Which one is free is for the network to say; none is left out, and nothing is sent twice.
TEST(UcxConnections, ThatAreFreeCarryMessagesForAny) {
  for (const std::uint32_t connections : {1U, 2U, 4U}) {
    SCOPED_TRACE(connections);
    Mesh mesh = two("tcp,self", connections);
    send_messages(mesh, false);
    const std::vector<std::uint64_t> sent = bytes_sent();
    EXPECT_THAT(sent, SizeIs(connections));
    EXPECT_THAT(std::accumulate(sent.begin(), sent.end(), std::uint64_t{0}),
                testing::AllOf(testing::Ge(2'400'000), testing::Lt(2'400'000 * 1.02)));
  }
}

// More than the sockets hold, so that some wait for a connection when their receiver's end is seen.
TEST(UcxConnections, MessagesThatWaitForAFreeOneFailWithTheirPeer) {
  Mesh mesh = two("tcp,self", 2);
  send_messages(mesh, false);
  std::vector<std::unique_ptr<Message>> messages;
  for (std::uint32_t number = 0; number < 40; ++number) {
    messages.push_back(std::make_unique<Message>(pattern(4'000'000, number)));
    messages.back()->request.connection = transport::kAnyConnection;
    messages.back()->send(mesh[0], mesh.ids[0][1], 100 + number);
  }
  EXPECT_FALSE(messages.back()->done());
  mesh.close(1);
  ASSERT_TRUE(progress_until([&] { return mesh[0].progress(); },
                             [&] {
                               return std::ranges::all_of(
                                   messages, [](const auto& each) { return each->done(); });
                             }));
  EXPECT_EQ(messages.back()->status(), Status::kPeerFailed);
}

// As if a firewall had forgotten one of them: both ends report each other within seconds, once.
TEST(UcxConnections, OneLostOfManyIsTheEndOfItsPeer) {
  Mesh mesh = two("tcp,self", 16);
  send_messages(mesh, false);
  ASSERT_TRUE(shut_down_one_connection());
  std::vector<std::unique_ptr<Message>> messages;
  for (std::uint32_t number = 0; number < 64; ++number) {
    messages.push_back(std::make_unique<Message>(pattern(500'000, number)));
    messages.back()->request.connection = transport::kAnyConnection;
    messages.back()->send(mesh[0], mesh.ids[0][1], 100 + number);
  }
  std::vector<transport::PeerFailure> here;
  std::vector<transport::PeerFailure> there;
  const auto take = [](std::vector<transport::PeerFailure>& into, transport::Transport& from) {
    const auto more = from.take_failures();
    into.insert(into.end(), more.begin(), more.end());
  };
  ASSERT_TRUE(progress_until([&] { return mesh.move(); },
                             [&] {
                               take(here, mesh[0]);
                               take(there, mesh[1]);
                               return !here.empty() && !there.empty() &&
                                      std::ranges::all_of(
                                          messages, [](const auto& each) { return each->done(); });
                             }));
  EXPECT_THAT(here, SizeIs(1));
  EXPECT_THAT(there, SizeIs(1));
  EXPECT_EQ(here.front().peer, mesh.ids[0][1]);
  EXPECT_EQ(there.front().peer, mesh.ids[1][0]);
}

TEST(UcxConnections, AreMoreOnALongerLink) {
  using std::chrono::microseconds;
  for (const auto& [round_trip, connections] :
       {std::pair{0, 1U}, {200, 1U}, {5'999, 1U}, {6'000, 2U}, {50'000, 16U}, {300'000, 16U}}) {
    EXPECT_EQ(transport::connections_for(microseconds(round_trip)), connections) << round_trip;
  }
}

TEST(UcxConnections, AreOneWhereThereIsNoTcp) {
  Mesh mesh = two("tcp,posix,sysv,self", 4);
  send_messages(mesh, true);
  EXPECT_EQ(mesh[0].connections(mesh.ids[0][1]), 1U);
  EXPECT_THAT(bytes_sent(), IsEmpty());
}

TEST(UcxConnections, EndsDifferInTheirNumber) {
  UcxNetwork network(1, {.settings = {{"TLS", "tcp,self"}}, .connections = 3});
  network.transports.push_back(
      transport::make_ucx_transport({.settings = {{"TLS", "tcp,self"}}, .connections = 1}));
  network.introduce();
  Message there(std::size_t{100'000});
  there.recv(network[1], network.ids[1][0], 1);
  Message back(std::size_t{100'000});
  back.recv(network[0], network.ids[0][1], 2);
  Message out(pattern(100'000, 1));
  out.request.connection = 2;
  out.send(network[0], network.ids[0][1], 1);
  Message answer(pattern(100'000, 2));
  answer.request.connection = 2;
  answer.send(network[1], network.ids[1][0], 2);
  ASSERT_TRUE(
      progress_until([&] { return network.move(); }, [&] { return there.done() && back.done(); }));
  EXPECT_TRUE(there.bytes == pattern(100'000, 1));
  EXPECT_TRUE(back.bytes == pattern(100'000, 2));
  EXPECT_EQ(network[0].connections(network.ids[0][1]), 3U);
  EXPECT_EQ(network[1].connections(network.ids[1][0]), 1U);
}

// One that ends first may bring nothing more; what the others bring comes before the peer's end.
TEST(UcxConnections, OfAPeerThatLeavesBringEverythingBeforeItsEnd) {
  Mesh mesh = two("tcp,self", 4);
  send_messages(mesh, true);
  mesh.close(0);
  std::vector<transport::PeerFailure> failures;
  ASSERT_TRUE(progress_until([&] { return mesh[1].progress(); },
                             [&] {
                               failures = mesh[1].take_failures();
                               return !failures.empty();
                             }));
  EXPECT_THAT(failures, SizeIs(1));
  EXPECT_FALSE(mesh[1].connected(mesh.ids[1][0]));
}

TEST(UcxConnections, AreAsManyAsTheEnvironmentSays) {
  for (const auto& [value, connections] :
       {std::pair{"1", 1U}, {"5", 5U}, {"64", 64U}, {"auto", 1U}}) {
    setenv("GTOPK_CONNECTIONS", value, 1);
    Mesh mesh = two("tcp,self", 0);
    EXPECT_EQ(mesh[0].connections(mesh.ids[0][1]), connections);
  }
  for (const char* const value : {"", "0", "65", "-1", "two", "2 ", "99999999999"}) {
    setenv("GTOPK_CONNECTIONS", value, 1);
    try {
      static_cast<void>(transport::make_ucx_transport());
      ADD_FAILURE() << "'" << value << "' is taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_THAT(error.what(),
                  HasSubstr(fmt::format("GTOPK_CONNECTIONS is '{}': expected auto, or a "
                                        "number of connections to each rank, 1 to 64",
                                        value)));
    }
  }
  unsetenv("GTOPK_CONNECTIONS");
}

}  // namespace
}  // namespace gtopk::test
