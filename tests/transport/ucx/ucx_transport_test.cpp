// Tests of the UCX transport beyond the suite for every transport: sleep, addresses and settings.
#include "src/transport/ucx/ucx_transport.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>

#include "gtopk/error.hpp"
#include "tests/support/program.hpp"
#include "tests/transport/ucx/mesh.hpp"

namespace gtopk::test {
namespace {

using namespace std::chrono_literals;
using gtopk::Error;
using testing::HasSubstr;

class UcxTransportTest : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static transport::UcxOptions options() {
    return {.settings = {{"TLS", GetParam()}}};
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, UcxTransportTest,
                         testing::Values("tcp,self", "tcp,posix,sysv,self"), [](const auto& test) {
                           return std::string(test.param) == "tcp,self" ? "Tcp" : "SharedMemory";
                         });

TEST_P(UcxTransportTest, MessageEndsAWait) {
  Mesh mesh(2, options());
  Message in(std::size_t{5});
  in.recv(mesh[1], mesh.ids[1][0], 1);
  std::atomic<bool> received{false};
  std::thread receiver([&] {
    const auto wait_and_progress = [&] {
      mesh[1].wait(10s);
      return mesh[1].progress();
    };
    EXPECT_TRUE(progress_until(wait_and_progress, [&] { return in.done(); }));
    received = true;
  });
  Message out("hello");
  out.send(mesh[0], mesh.ids[0][1], 1);
  // Both ends must progress to connect.
  EXPECT_TRUE(
      progress_until([&] { return mesh[0].progress(); }, [&] { return received && out.done(); }));
  receiver.join();
  EXPECT_EQ(in.bytes, "hello");
}

// Spinning would keep the core from the peer, which alone can make space.
TEST_P(UcxTransportTest, WaitingForSpaceInThePeersQueueIsASleep) {
  Mesh mesh(2, options());
  const auto move = [&] { return mesh.move(); };
  Message hello("hello");
  Message heard(std::size_t{5});
  heard.recv(mesh[1], mesh.ids[1][0], 1);
  hello.send(mesh[0], mesh.ids[0][1], 1);
  ASSERT_TRUE(progress_until(move, [&] { return heard.done() && hello.done(); }));

  constexpr std::size_t kMessages = 400;
  constexpr std::size_t kBytes = 8000;
  std::deque<Message> out;
  std::deque<Message> in;
  for (std::size_t i = 0; i < kMessages; ++i) {
    in.emplace_back(kBytes).recv(mesh[1], mesh.ids[1][0], 2 + i);
    out.emplace_back(pattern(kBytes, static_cast<unsigned>(i)))
        .send(mesh[0], mesh.ids[0][1], 2 + i);
  }
  // The peer does not look, and its queue holds less than that.
  const auto begin = std::chrono::steady_clock::now();
  std::uint64_t waits = 0;
  while (std::chrono::steady_clock::now() < begin + 100ms) {
    mesh[0].wait(10ms);
    mesh[0].progress();
    ++waits;
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_LE(waits, static_cast<std::uint64_t>(took / 50us) + 1000);

  const auto arrived = [&] {
    return std::ranges::all_of(in, &Message::done) && std::ranges::all_of(out, &Message::done);
  };
  EXPECT_TRUE(progress_until(move, arrived));
  for (std::size_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(in[i].bytes, out[i].bytes) << "message " << i;
  }
}

// An idle engine would spin for ever.
TEST(UcxTransport, EndOfAPeer_LeavesNothingToDo) {
  Mesh mesh(2, {.settings = {{"TLS", "tcp,self"}}});
  Message in(std::size_t{5});
  in.recv(mesh[1], mesh.ids[1][0], 1);
  Message out("hello");
  out.send(mesh[0], mesh.ids[0][1], 1);
  const auto move = [&] { return mesh.move(); };
  ASSERT_TRUE(progress_until(move, [&] { return in.done() && out.done(); }));
  mesh.close(0);
  const auto progress = [&] { return mesh[1].progress(); };
  ASSERT_TRUE(progress_until(progress, [&] { return !mesh[1].take_failures().empty(); }));
  EXPECT_TRUE(progress_until([] { return true; }, [&] { return !progress(); }));
}

/// A loopback port that accepts and at once resets every connection, as the kernel does for a
/// process that is killed while others connect to it.
class ResettingPort {
 public:
  ResettingPort() = default;
  ResettingPort(const ResettingPort&) = delete;
  ResettingPort& operator=(const ResettingPort&) = delete;
  ~ResettingPort() {
    shutdown(socket_, SHUT_RDWR);  // ends accept
    if (thread_.joinable()) {
      thread_.join();
    }
    ::close(socket_);
  }

  [[nodiscard]] std::uint16_t number() const { return port_; }
  void start() {
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    const int yes = 1;
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(socket_, 128), 0);
    thread_ = std::thread([this] {
      for (int taken = 0; (taken = accept(socket_, nullptr, nullptr)) >= 0;) {
        const linger reset{.l_onoff = 1, .l_linger = 0};
        setsockopt(taken, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        ::close(taken);
      }
    });
  }

 private:
  int socket_ = -1;
  std::uint16_t port_ = free_port();
  std::thread thread_;
};

// With UCX_TCP_CONN_NB=n this case uses freed memory now and then.
TEST(UcxTransport, PeerResettingConnections_FailsSendWithoutCrash) {
  const auto options = [](const std::string& ports) {
    return transport::UcxOptions{
        .settings = {{"TLS", "tcp,self"}, {"NET_DEVICES", "lo"}, {"TCP_PORT_RANGE", ports}}};
  };
  ResettingPort port;
  std::string address;
  std::string card;
  {
    const auto number = std::to_string(port.number());
    const auto transport = transport::make_ucx_transport(options(number + "-" + number));
    address = transport->address();
    card = transport->card();
  }
  port.start();
  const auto dialler = transport::make_ucx_transport(options("0"));
  const auto step = [&] { return dialler->progress(); };
  constexpr std::size_t kIdentity = 5;  // its position in an address, after magic and version
  for (char round = 0; round < 100; ++round) {
    address[kIdentity] = card[kIdentity] = round;
    const PeerId peer = dialler->add_peer(card);
    dialler->set_address(peer, address);
    Message out("hello");
    out.send(*dialler, peer, 1);
    ASSERT_TRUE(progress_until(step, [&] { return out.done(); }));
    EXPECT_EQ(out.request.status(), Status::kPeerFailed);
    for (int i = 0; i < 100; ++i) {
      dialler->progress();
    }
  }
}

// The start of a long message has come; its sender ends without having sent the rest.
TEST(UcxTransport, ReceiveOfAMessageWhoseRestNeverComesEnds) {
  Mesh mesh(2, {.settings = {{"TLS", "tcp,self"}}});
  const auto move = [&] { return mesh.move(); };
  Message hello("hello");
  Message heard(std::size_t{5});
  heard.recv(mesh[1], mesh.ids[1][0], 1);
  hello.send(mesh[0], mesh.ids[0][1], 1);
  Message out(std::size_t{10} << 20U);
  out.send(mesh[0], mesh.ids[0][1], 2);
  ASSERT_TRUE(progress_until(move, [&] { return heard.done() && mesh[1].lies_there(2); }));
  mesh[0].close(0s);
  EXPECT_EQ(out.status(), Status::kPeerFailed);
  ASSERT_TRUE(progress_until([&] { return mesh[1].progress(); },
                             [&] { return !mesh[1].take_failures().empty(); }));
  Message in(out.bytes.size());
  in.recv(mesh[1], mesh.ids[1][0], 2);
  ASSERT_TRUE(progress_until([&] { return mesh[1].progress(); }, [&] { return in.done(); }));
  EXPECT_EQ(in.status(), Status::kPeerFailed);
}

TEST(UcxTransport, IsOfThisProcess) {
  const Mesh mesh(1);
  EXPECT_EQ(mesh.transports[0]->self().process, getpid());
}

TEST(UcxTransport, AddressOfAnotherVersionIsAnError) {
  Mesh mesh(1);
  std::string other = mesh[0].card();
  other[4] = 99;
  EXPECT_THROW(mesh[0].add_peer(other), Error);
}

TEST(UcxTransport, DescribeSaysLibraryAndWhoChoseTheTransports) {
  const auto transport = transport::make_ucx_transport({.settings = {{"TLS", "tcp,self"}}});
  EXPECT_THAT(transport->describe(), HasSubstr("libucp"));
  EXPECT_THAT(transport->describe(), HasSubstr("TLS=tcp,self (program)"));
  EXPECT_THAT(transport->describe(), HasSubstr("MM_ERROR_HANDLING=y (default)"));
}

TEST(UcxTransport, EnvironmentBeatsProgramAndDefault) {
  setenv("UCX_TLS", "tcp,self", 1);
  setenv("GTOPK_UCX_TCP_RX_SEG_SIZE", "512K", 1);
  const auto transport = transport::make_ucx_transport({.settings = {{"TLS", "posix,sysv,self"}}});
  EXPECT_THAT(transport->describe(), HasSubstr("TLS=tcp,self (UCX_TLS)"));
  EXPECT_THAT(transport->describe(), HasSubstr("TCP_RX_SEG_SIZE=512K (GTOPK_UCX_TCP_RX_SEG_SIZE)"));
  unsetenv("UCX_TLS");
  unsetenv("GTOPK_UCX_TCP_RX_SEG_SIZE");
}

TEST(UcxTransport, SettingThatUcxDoesNotKnowIsAnErrorThatNamesIt) {
  try {
    const auto transport = transport::make_ucx_transport({.settings = {{"NO_SUCH_KEY", "1"}}});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("UCX_NO_SUCH_KEY=1"));
  }
}

}  // namespace
}  // namespace gtopk::test
