// Tests of the rendezvous' wire format: what is written is read back, and nothing else is accepted.
#include "src/transport/bootstrap/frame.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "gtopk/error.hpp"

namespace gtopk::bootstrap {
namespace {

TEST(Frame, RequestIsReadAsItWasWritten) {
  const std::string bytes = encode_request(Command::kSet, "key", std::string("a\0b", 3));
  RequestView request;
  const std::string more = bytes + "rest";
  ASSERT_EQ(parse_request(more, request), Parse::kComplete);
  EXPECT_EQ(request.command, Command::kSet);
  EXPECT_EQ(request.key, "key");
  EXPECT_EQ(request.value, std::string_view("a\0b", 3));
  EXPECT_EQ(request.size, bytes.size());
}

TEST(Frame, EveryPrefixOfARequestIsIncomplete) {
  const std::string bytes = encode_request(Command::kSet, "key", "value");
  RequestView request;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(parse_request(bytes.substr(0, length), request), Parse::kIncomplete) << length;
  }
}

TEST(Frame, StrangerIsKnownByItsFirstByte) {
  RequestView request;
  EXPECT_EQ(parse_request("H", request), Parse::kMalformed);
  EXPECT_EQ(parse_request("GET / HTTP/1.1\r\n", request), Parse::kMalformed);
}

TEST(Frame, LengthsOverTheLimitsAreMalformed) {
  RequestView request;
  std::string bytes = encode_request(Command::kSet, "key", "value");
  for (const std::size_t at : {std::size_t{6}, std::size_t{10}}) {  // high bytes of both lengths
    std::string broken = bytes;
    broken[at] = '\xff';
    EXPECT_EQ(parse_request(broken, request), Parse::kMalformed) << at;
  }
  std::string no_key = bytes;
  no_key[5] = 0;
  EXPECT_EQ(parse_request(no_key, request), Parse::kMalformed);
  std::string no_command = bytes;
  no_command[4] = 9;
  EXPECT_EQ(parse_request(no_command, request), Parse::kMalformed);
}

TEST(Frame, RandomBytesNeverReadPastTheirEnd) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::string valid = encode_request(Command::kSet, "some key", std::string(200, 'v'));
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = valid.substr(0, random() % (valid.size() + 1));
    for (unsigned flips = random() % 4; flips > 0 && !bytes.empty(); --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    RequestView request;
    if (parse_request(bytes, request) == Parse::kComplete) {
      ASSERT_LE(request.size, bytes.size());
      ASSERT_EQ(request.size, kRequestHeader + request.key.size() + request.value.size());
    }
  }
}

TEST(Frame, KeysAndValuesOverTheLimitsAreNotSent) {
  EXPECT_THROW(static_cast<void>(encode_request(Command::kGet, "", {})), Error);
  EXPECT_THROW(static_cast<void>(encode_request(Command::kGet, std::string(kMaxKey + 1, 'k'), {})),
               Error);
  EXPECT_THROW(
      static_cast<void>(encode_request(Command::kSet, "k", std::string(kMaxValue + 1, 'v'))),
      Error);
}

TEST(Frame, IntegersKeepTheirSign) {
  for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, INT64_MIN, INT64_MAX}) {
    EXPECT_EQ(decode_integer(encode_integer(value)), value);
  }
  EXPECT_FALSE(decode_integer("1234567"));
}

TEST(Frame, ResponseHeaderOfAnotherProtocolIsRefused) {
  EXPECT_FALSE(parse_response({'H', 'T', 'T', 'P', '/'}));
  const std::string bytes = encode_response(Result::kOk, "abc");
  std::array<char, kResponseHeader> header{};
  std::copy_n(bytes.begin(), header.size(), header.begin());
  const auto parsed = parse_response(header);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->value_length, 3U);
}

}  // namespace
}  // namespace gtopk::bootstrap
