// Tests of the UCX transport with all its ends in one thread: each message arrives once, whole and
// where it was asked for, or says why not.
#include "transport/ucx/ucx_transport.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtopk/error.hpp"
#include "transport/base/tag.hpp"
#include "transport/ucx/mesh.hpp"

namespace gtopk::test {
namespace {

using namespace std::chrono_literals;
using gtopk::Error;
using testing::HasSubstr;
using transport::any_source_mask;
using transport::collective_tag;

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

TEST_P(UcxTransportTest, MessageArrivesWhicheverSideStartsFirst) {
  Mesh mesh(2, options());
  for (const std::size_t size : {0UL, 1UL, 8191UL, 70'000UL, 300'000UL, 4UL << 20U}) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(testing::Message() << size << " bytes, receive first: " << receive_first);
      Message out(pattern(size, 1));
      Message in(size);
      const Tag tag = collective_tag(1, 0, size, 0);
      if (receive_first) {
        in.recv(mesh[1], mesh.ids[1][0], tag);
      }
      out.send(mesh[0], mesh.ids[0][1], tag);
      if (!receive_first) {
        ASSERT_TRUE(mesh.arrived(0, 1));
        in.recv(mesh[1], mesh.ids[1][0], tag);
      }
      ASSERT_TRUE(mesh.until([&] { return out.done() && in.done(); }));
      EXPECT_EQ(out.request.status(), Status::kOk);
      EXPECT_EQ(in.request.status(), Status::kOk);
      EXPECT_EQ(in.request.length(), size);
      EXPECT_EQ(out.request.length(), size);
      EXPECT_TRUE(in.bytes == out.bytes);
      EXPECT_EQ(out.completions, 1);
      EXPECT_EQ(in.completions, 1);
    }
  }
}

TEST_P(UcxTransportTest, ShorterMessageSaysItsLength) {
  Mesh mesh(2, options());
  Message out("abc");
  Message in(std::size_t{100});
  in.recv(mesh[1], mesh.ids[1][0], 7);
  out.send(mesh[0], mesh.ids[0][1], 7);
  ASSERT_TRUE(mesh.until([&] { return in.done(); }));
  EXPECT_EQ(in.request.status(), Status::kOk);
  EXPECT_EQ(in.request.length(), 3U);
}

TEST_P(UcxTransportTest, LongerMessageIsTruncatedWithTheSendersLength) {
  Mesh mesh(2, options());
  for (const std::size_t size : {100UL, 70'000UL, 1UL << 20U}) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(testing::Message() << size << " bytes, receive first: " << receive_first);
      Message out(pattern(size, 2));
      Message in(size - 10);
      if (receive_first) {
        in.recv(mesh[1], mesh.ids[1][0], 7);
      }
      out.send(mesh[0], mesh.ids[0][1], 7);
      if (!receive_first) {
        ASSERT_TRUE(mesh.arrived(0, 1));
        in.recv(mesh[1], mesh.ids[1][0], 7);
      }
      ASSERT_TRUE(mesh.until([&] { return out.done() && in.done(); }));
      EXPECT_EQ(in.request.status(), Status::kTruncated);
      EXPECT_EQ(in.request.length(), size);
      EXPECT_EQ(out.request.status(), Status::kOk);
    }
  }
}

TEST_P(UcxTransportTest, SendToTheOwnProcessArrives) {
  Mesh mesh(1, options());
  for (const std::size_t size : {5UL, 100'000UL, 1UL << 20U}) {
    Message out(pattern(size, 3));
    Message in(size);
    in.recv(mesh[0], mesh.ids[0][0], 9);
    out.send(mesh[0], mesh.ids[0][0], 9);
    ASSERT_TRUE(mesh.until([&] { return out.done() && in.done(); }));
    EXPECT_EQ(in.request.status(), Status::kOk);
    EXPECT_TRUE(in.bytes == out.bytes);
  }
}

TEST_P(UcxTransportTest, MessagesOfOneTagArriveInTheOrderTheyWereSent) {
  Mesh mesh(2, options());
  constexpr std::size_t kCount = 60;
  std::vector<std::unique_ptr<Message>> outs;
  std::vector<std::unique_ptr<Message>> ins;
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::size_t size = (i * 7919) % 400'000;  // eager, fragments and rendezvous mixed
    outs.push_back(std::make_unique<Message>(pattern(size, static_cast<unsigned>(i))));
    ins.push_back(std::make_unique<Message>(size));
    outs.back()->send(mesh[0], mesh.ids[0][1], 3);
  }
  for (const auto& in : ins) {
    in->recv(mesh[1], mesh.ids[1][0], 3);
  }
  ASSERT_TRUE(mesh.until([&] {
    return std::all_of(ins.begin(), ins.end(), [](const auto& m) { return m->done(); }) &&
           std::all_of(outs.begin(), outs.end(), [](const auto& m) { return m->done(); });
  }));
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_TRUE(ins[i]->bytes == outs[i]->bytes) << i;
  }
}

TEST_P(UcxTransportTest, CancelledReceiveTakesNoMessage) {
  Mesh mesh(2, options());
  Message withdrawn(std::size_t{8});
  withdrawn.recv(mesh[1], mesh.ids[1][0], 5);
  mesh[1].cancel(withdrawn.request);
  ASSERT_TRUE(mesh.until([&] { return withdrawn.done(); }));
  EXPECT_EQ(withdrawn.request.status(), Status::kCancelled);
  EXPECT_EQ(withdrawn.completions, 1);
  mesh[1].cancel(withdrawn.request);
  Message out("message!");
  Message in(std::size_t{8});
  out.send(mesh[0], mesh.ids[0][1], 5);
  in.recv(mesh[1], mesh.ids[1][0], 5);
  ASSERT_TRUE(mesh.until([&] { return in.done(); }));
  EXPECT_EQ(in.bytes, out.bytes);
  EXPECT_EQ(withdrawn.completions, 1);
}

TEST_P(UcxTransportTest, DiscardDropsWhatFitsTheMaskAndNothingElse) {
  Mesh mesh(2, options());
  std::vector<std::unique_ptr<Message>> outs;
  for (std::uint32_t step = 0; step < 3; ++step) {
    outs.push_back(std::make_unique<Message>(pattern(std::size_t{100'000} * (5 * step + 1), step)));
    outs.back()->send(mesh[0], mesh.ids[0][1], collective_tag(1, 0, 10, step));
  }
  Message other("kept");
  other.send(mesh[0], mesh.ids[0][1], collective_tag(1, 0, 11, 0));
  std::size_t dropped = 0;
  ASSERT_TRUE(mesh.until([&] {
    dropped += mesh[1].discard(collective_tag(1, 0, 10, 0), any_source_mask());
    return dropped == 3 && other.done() &&
           std::all_of(outs.begin(), outs.end(), [](const auto& m) { return m->done(); });
  }));
  EXPECT_EQ(outs[2]->request.status(), Status::kOk);
  Message in(std::size_t{4});
  in.recv(mesh[1], mesh.ids[1][0], collective_tag(1, 0, 11, 0));
  ASSERT_TRUE(mesh.until([&] { return in.done(); }));
  EXPECT_EQ(in.bytes, "kept");
}

TEST_P(UcxTransportTest, SixteenWorkersAllToAll) {
  constexpr std::size_t kSize = 16;
  Mesh mesh(kSize, options());
  std::vector<std::unique_ptr<Message>> outs;
  std::vector<std::unique_ptr<Message>> ins;
  for (std::uint32_t i = 0; i < kSize; ++i) {
    for (std::uint32_t j = 0; j < kSize; ++j) {
      ins.push_back(std::make_unique<Message>(std::size_t{10'000}));
      ins.back()->recv(mesh[i], mesh.ids[i][j], collective_tag(1, j, 1, 0));
    }
  }
  for (std::uint32_t i = 0; i < kSize; ++i) {
    for (std::uint32_t j = 0; j < kSize; ++j) {
      outs.push_back(std::make_unique<Message>(pattern(10'000, i * 16 + j)));
      outs.back()->send(mesh[i], mesh.ids[i][j], collective_tag(1, i, 1, 0));
    }
  }
  ASSERT_TRUE(mesh.until([&] {
    return std::all_of(ins.begin(), ins.end(), [](const auto& m) { return m->done(); });
  }));
  for (std::size_t i = 0; i < kSize; ++i) {
    for (std::size_t j = 0; j < kSize; ++j) {
      EXPECT_TRUE(ins[i * kSize + j]->bytes == outs[j * kSize + i]->bytes) << j << " to " << i;
    }
  }
}

TEST_P(UcxTransportTest, GiveUpCompletesEveryRequestAndReportsNothing) {
  Mesh mesh(2, options());
  Message hello("x");
  Message got(std::size_t{1});
  hello.send(mesh[0], mesh.ids[0][1], 1);
  got.recv(mesh[1], mesh.ids[1][0], 1);
  ASSERT_TRUE(mesh.until([&] { return got.done(); }));
  Message waiting(std::size_t{8});
  Message large(std::size_t{32} << 20U);  // a rendezvous that nobody answers
  waiting.recv(mesh[0], mesh.ids[0][1], 2);
  large.send(mesh[0], mesh.ids[0][1], 3);
  EXPECT_TRUE(large.request.pending());
  mesh[0].give_up(mesh.ids[0][1]);
  ASSERT_TRUE(mesh.until([&] { return waiting.done() && large.done(); }));
  EXPECT_EQ(waiting.request.status(), Status::kPeerFailed);
  EXPECT_EQ(large.request.status(), Status::kPeerFailed);
  EXPECT_EQ(waiting.completions + large.completions, 2);
  Message late("y");
  late.send(mesh[0], mesh.ids[0][1], 4);
  EXPECT_EQ(late.request.status(), Status::kPeerFailed);
  Message late_receive(std::size_t{1});
  late_receive.recv(mesh[0], mesh.ids[0][1], 4);
  EXPECT_EQ(late_receive.request.status(), Status::kPeerFailed);
  EXPECT_TRUE(mesh[0].take_failures().empty());
}

TEST_P(UcxTransportTest, WakeFromAnotherThreadEndsAWait) {
  Mesh mesh(1, options());
  for (int round = 0; round < 100; ++round) {
    std::atomic<bool> called{false};
    std::thread waker([&] {
      called = true;
      mesh[0].wake();
    });
    const auto deadline = std::chrono::steady_clock::now() + kWatchdog;
    while (!called && std::chrono::steady_clock::now() < deadline) {
      mesh[0].wait(10s);
    }
    waker.join();
    ASSERT_TRUE(called);
  }
}

TEST_P(UcxTransportTest, WakeBeforeAWaitIsNotLost) {
  Mesh mesh(1, options());
  while (mesh[0].progress()) {
  }
  // Sleeps are cut to 50 ms; of twenty that were not woken, each would take that long.
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < 20; ++round) {
    mesh[0].wake();
    mesh[0].wait(10s);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
}

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
  // The connection is made by both ends' progress.
  EXPECT_TRUE(
      progress_until([&] { return mesh[0].progress(); }, [&] { return received && out.done(); }));
  receiver.join();
  EXPECT_EQ(in.bytes, "hello");
}

TEST_P(UcxTransportTest, CloseDeliversWhatWasSent) {
  Mesh mesh(2, options());
  Message in(std::size_t{200'000});
  in.recv(mesh[1], mesh.ids[1][0], 1);
  Message out(pattern(200'000, 4));
  out.send(mesh[0], mesh.ids[0][1], 1);
  mesh[1].expect_departure(mesh.ids[1][0]);
  ASSERT_TRUE(mesh.until([&] { return out.done(); }));
  std::atomic<bool> closed{false};
  std::thread closing([&] {
    mesh[0].close(kWatchdog);
    closed = true;
  });
  EXPECT_TRUE(
      progress_until([&] { return mesh[1].progress(); }, [&] { return in.done() && closed; }));
  closing.join();
  EXPECT_EQ(in.request.status(), Status::kOk);
  EXPECT_TRUE(in.bytes == out.bytes);
}

TEST_P(UcxTransportTest, PeersMayCloseInAnyOrder) {
  for (const std::size_t first : {0UL, 1UL, 2UL}) {
    Mesh mesh(3, options());
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 3; ++j) {
        Message out("x");
        Message in(std::size_t{1});
        in.recv(mesh[j], mesh.ids[j][i], 1);
        out.send(mesh[i], mesh.ids[i][j], 1);
        ASSERT_TRUE(mesh.until([&] { return in.done() && out.done(); }));
      }
    }
    for (std::size_t i = 0; i < 3; ++i) {
      // Over TCP a flush needs the other end's progress, as real ranks make it, each on its
      // engine's thread.
      Transport& leaving = mesh[(first + i) % 3];
      std::atomic<bool> closed{false};
      std::thread closing([&] {
        leaving.close(kWatchdog);
        closed = true;
      });
      for (std::size_t j = i + 1; j < 3; ++j) {
        mesh[(first + j) % 3].expect_departure(mesh.ids[(first + j) % 3][(first + i) % 3]);
      }
      const auto rest = [&] {
        bool moved = false;
        for (std::size_t j = i + 1; j < 3; ++j) {
          moved = mesh[(first + j) % 3].progress() || moved;
        }
        return moved;
      };
      EXPECT_TRUE(progress_until(rest, [&] { return closed.load(); }));
      closing.join();
      leaving.wake();  // harmless after close
      for (std::size_t j = i + 1; j < 3; ++j) {
        EXPECT_TRUE(mesh[(first + j) % 3].take_failures().empty());
      }
    }
  }
}

TEST(UcxTransport, SamePeerKeepsItsId) {
  Mesh mesh(3);
  EXPECT_EQ(mesh[0].add_peer(mesh[1].address()), mesh.ids[0][1]);
  EXPECT_EQ(mesh[0].peer(mesh.ids[0][2]).identity, mesh[2].self().identity);
  EXPECT_EQ(mesh[0].peer(mesh.ids[0][0]).process, getpid());
  EXPECT_NE(mesh.ids[0][1], mesh.ids[0][2]);
}

TEST(UcxTransport, AddressThatCannotBeReadIsAnError) {
  Mesh mesh(1);
  const std::string address = mesh[0].address();
  for (std::size_t length = 0; length < address.size(); ++length) {
    EXPECT_THROW(mesh[0].add_peer(address.substr(0, length)), Error) << length;
  }
  EXPECT_THROW(mesh[0].add_peer(address + "x"), Error);
  std::string other = address;
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
