// Every transport: each message arrives once, whole, in order and where it was requested, or says
// why not.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "src/transport/base/tag.hpp"
#include "tests/transport/suite/every_transport.hpp"

namespace gtopk::test {
namespace {

using transport::collective_tag;
using transport::control_tag;

class Messages : public EveryTransport {};
INSTANTIATE_TEST_SUITE_P(Every, Messages, testing::ValuesIn(networks()), name_of);

TEST_P(Messages, ToTheOwnProcessArriveWhicheverSideStartsFirst) {
  begin(1);
  for (const std::size_t size : {0UL, 5UL, 100'000UL, 1UL << 20U}) {
    const std::string content = pattern(size, 3);
    Message& in = recv(0, 0, 9, size);
    Message& out = send(0, 0, 9, content);
    ASSERT_TRUE(done({&in, &out})) << size << " bytes";
    EXPECT_EQ(in.status(), Status::kOk);
    EXPECT_TRUE(in.bytes == content);
    Message& second_out = send(0, 0, 9, content);
    ASSERT_TRUE(network().arrived(0, 0));
    Message& second_in = recv(0, 0, 9, size);
    ASSERT_TRUE(done({&second_in, &second_out})) << size << " bytes, unexpected";
    EXPECT_TRUE(second_in.bytes == content);
  }
}

TEST_P(Messages, OfAnySizeArriveWhicheverSideStartsFirst) {
  begin(2);
  for (const std::size_t size : sizes_around_limits()) {
    const std::string content = pattern(size, static_cast<unsigned>(size));
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(testing::Message() << size << " bytes, receive first: " << receive_first);
      Message out(content);
      Message in(size);
      if (receive_first) {
        in.recv(end(1), id(1, 0), size);
      }
      out.send(end(0), id(0, 1), size);
      if (!receive_first) {
        ASSERT_TRUE(network().arrived(0, 1));
        in.recv(end(1), id(1, 0), size);
      }
      ASSERT_TRUE(done({&out, &in}));
      EXPECT_EQ(out.status(), Status::kOk);
      EXPECT_EQ(in.status(), Status::kOk);
      EXPECT_EQ(in.request.length(), size);
      EXPECT_EQ(out.request.length(), size);
      ASSERT_TRUE(in.bytes == content);
    }
  }
}

TEST_P(Messages, ShorterThanTheBufferSayTheirLength) {
  begin(2);
  const Message& in = recv(1, 0, 7, 100);
  const Message& out = send(0, 1, 7, "abc");
  ASSERT_TRUE(all_done());
  EXPECT_EQ(in.status(), Status::kOk);
  EXPECT_EQ(in.request.length(), 3U);
  EXPECT_EQ(in.text(), "abc");
  EXPECT_EQ(out.request.length(), 3U);
}

TEST_P(Messages, LongerThanBuffer_AreTruncatedAndTellSendersLength) {
  begin(2);
  for (const std::size_t size : {5UL, 100UL, 70'000UL, 1UL << 20U}) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(testing::Message() << size << " bytes, receive first: " << receive_first);
      const auto post = [&]() -> Message& { return recv(1, 0, 7, size - 3); };
      const Message* in = receive_first ? &post() : nullptr;
      const Message& out = send(0, 1, 7, pattern(size, 2));
      if (in == nullptr) {
        ASSERT_TRUE(network().arrived(0, 1));
        in = &post();
      }
      ASSERT_TRUE(all_done());
      EXPECT_EQ(in->status(), Status::kTruncated);
      EXPECT_EQ(in->request.length(), size);
      EXPECT_EQ(out.status(), Status::kOk) << "the sender never learns";
    }
  }
}

TEST_P(Messages, MatchNoOtherTag) {
  begin(2);
  Message& five = recv(1, 0, 5, 10);
  send(0, 1, 6, "six");
  ASSERT_TRUE(network().arrived(0, 1));
  EXPECT_TRUE(five.pending());
  send(0, 1, 5, "five");
  ASSERT_TRUE(done({&five}));
  EXPECT_EQ(five.text(), "five");
  const Message& six = recv(1, 0, 6, 10);
  ASSERT_TRUE(all_done());
  EXPECT_EQ(six.text(), "six");
}

TEST_P(Messages, OfOneSenderAndTagKeepTheirOrder) {
  constexpr unsigned kCount = 60;
  for (const bool receive_first : {true, false}) {
    begin(2);
    const auto size = [](unsigned i) { return std::size_t{i} * 7919 % 400'000; };
    std::vector<const Message*> ins;
    const auto receive = [&] {
      for (unsigned i = 0; i < kCount; ++i) {
        ins.push_back(&recv(1, 0, 3, size(i)));
      }
    };
    if (receive_first) {
      receive();
    }
    for (unsigned i = 0; i < kCount; ++i) {
      send(0, 1, 3, pattern(size(i), i));
    }
    if (!receive_first) {
      receive();
    }
    ASSERT_TRUE(all_done());
    for (unsigned i = 0; i < kCount; ++i) {
      EXPECT_EQ(ins[i]->status(), Status::kOk);
      EXPECT_TRUE(ins[i]->text() == pattern(size(i), i)) << i;
    }
  }
}

TEST_P(Messages, LeaveTheirBufferFreeAsSoonAsTheSendIsDone) {
  begin(2);
  for (const std::size_t size : {5UL, 2'000UL, 70'000UL, 1UL << 20U}) {
    Message& out = send(0, 1, 5, pattern(size, 1));
    Message* in = nullptr;
    // If a send completes before its receive is posted, the transport owns the message by then.
    if (!out.done()) {
      in = &recv(1, 0, 5, size);
      ASSERT_TRUE(done({&out}));
    }
    out.bytes.assign(size, 'X');
    if (in == nullptr) {
      in = &recv(1, 0, 5, size);
    }
    ASSERT_TRUE(done({in}));
    EXPECT_TRUE(in->bytes == pattern(size, 1)) << size << " bytes";
  }
}

TEST_P(Messages, OfSixteenEndsAllToAllArriveWhereTheyBelong) {
  constexpr std::uint32_t kSize = 16;
  begin(kSize);
  std::vector<const Message*> ins;
  for (std::uint32_t at = 0; at < kSize; ++at) {
    for (std::uint32_t from = 0; from < kSize; ++from) {
      ins.push_back(&recv(at, from, collective_tag(1, from, 1, 0), 10'000));
    }
  }
  for (std::uint32_t from = 0; from < kSize; ++from) {
    for (std::uint32_t to = 0; to < kSize; ++to) {
      send(from, to, collective_tag(1, from, 1, 0), pattern(10'000, from * kSize + to));
    }
  }
  ASSERT_TRUE(all_done());
  for (std::uint32_t at = 0; at < kSize; ++at) {
    for (std::uint32_t from = 0; from < kSize; ++from) {
      EXPECT_TRUE(ins[at * kSize + from]->bytes == pattern(10'000, from * kSize + at))
          << from << " to " << at;
    }
  }
}

TEST_P(Messages, MixedSendsAndReceives_ArriveOnceAndInOrder) {
  for (std::uint64_t seed = 0; seed < GetParam().seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    constexpr std::uint64_t kEnds = 5;
    begin(kEnds, seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](std::uint64_t below) { return random() % below; };
    std::map<std::tuple<std::size_t, std::size_t, Tag>, std::vector<std::string>> sent;
    std::map<std::tuple<std::size_t, std::size_t, Tag>, std::vector<const Message*>> received;
    for (int i = 0; i < 300; ++i) {
      const std::size_t from = pick(kEnds);
      const std::size_t to = pick(kEnds);
      const Tag tag = collective_tag(0, static_cast<std::uint32_t>(from), 0,
                                     static_cast<std::uint32_t>(pick(3)));
      const std::size_t size = pick(4) == 0 ? pick(50'000) : pick(20);
      const bool receive_first = pick(2) == 0;
      if (receive_first) {
        received[{from, to, tag}].push_back(&recv(to, from, tag, 50'010));
      }
      const std::string text = std::to_string(i) + std::string(size, '-');
      send(from, to, tag, text);
      sent[{from, to, tag}].push_back(text);
      for (std::uint64_t moves = pick(5); moves > 0; --moves) {
        network().move();
      }
      if (!receive_first) {
        received[{from, to, tag}].push_back(&recv(to, from, tag, 50'010));
      }
    }
    ASSERT_TRUE(all_done());
    for (const auto& [stream, texts] : sent) {
      for (std::size_t i = 0; i < texts.size(); ++i) {
        ASSERT_EQ(received[stream][i]->status(), Status::kOk);
        ASSERT_EQ(received[stream][i]->text(), texts[i]);
      }
    }
  }
}

TEST_P(Messages, ThatWereSentBeforeANoticeAreThereWhenItComes) {
  for (std::uint64_t seed = 0; seed < GetParam().seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    begin(2, seed);
    const Message& expected = recv(1, 0, collective_tag(0, 0, 1, 0), 4);
    const Message& told = recv(1, 0, control_tag(1), 4);
    send(0, 1, collective_tag(0, 0, 1, 0), "here");
    constexpr std::uint32_t kUnexpected = 6;
    for (std::uint32_t i = 0; i < kUnexpected; ++i) {
      send(0, 1, collective_tag(0, 0, 2, i), pattern(std::size_t{1} << (3 * i), i));
    }
    send(0, 1, control_tag(1), "told");
    ASSERT_TRUE(done({&told}));
    EXPECT_EQ(end(1).discard(0, 0), kUnexpected);
    ASSERT_TRUE(all_done());
    EXPECT_EQ(expected.text(), "here");
  }
}

}  // namespace
}  // namespace gtopk::test
