// Collectives: the header carries the signature unchanged, and refuses what is not its like.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "collectives/signature.hpp"
#include "engine/group_view.hpp"
#include "gtopk/error.hpp"
#include "support/inproc_ranks.hpp"

namespace gtopk::collectives {
namespace {

using Message = std::array<std::byte, kHeaderBytes>;

Signature some_signature() {
  Signature signature;
  signature.collective = Collective::kSparseAllReduce;
  signature.dtype = DataType::kBfloat16;
  signature.op = ReduceOp::kAvg;
  signature.algorithm = Algorithm::kTopk;
  signature.put_back = PutBack::kMerged;
  signature.root = 3;
  signature.d = (std::uint64_t{1} << 40U) + 5;
  signature.k = 123456789012;
  return signature;
}

/// An operation's view of rank 1 of 3, without an operation under way.
class HeaderTest : public ::testing::Test {
 protected:
  support::InprocRanks ranks_{3};
  engine::Operation operation_{ranks_.engine(1), ranks_.group(1), 7, {}};
  engine::GroupView view_{operation_};

  std::string refusal(std::span<const std::byte> message, const Signature& mine) {
    try {
      static_cast<void>(read_header(message, mine, view_, 2));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
      return error.what();
    }
    return {};
  }
};

TEST_F(HeaderTest, CarriesEveryFieldUnchanged) {
  Message message{};
  write_header(message, some_signature(), 7,
               {.count = 99, .flags = Header::kNonFinite, .index_bytes = 8});
  const Header header = read_header(message, some_signature(), view_, 2);
  EXPECT_EQ(header.count, 99U);
  EXPECT_EQ(header.flags, Header::kNonFinite);
  EXPECT_EQ(header.index_bytes, 8);
  EXPECT_EQ(header.sequence, 7U);
  EXPECT_EQ(header.d, some_signature().d);
  EXPECT_EQ(header.k, some_signature().k);
  EXPECT_EQ(header.root, 3U);
}

TEST_F(HeaderTest, ADifferenceInAnyFieldIsAMismatchThatNamesBothSides) {
  Message message{};
  write_header(message, some_signature(), 7);
  const auto differs = [&](auto change) {
    Signature mine = some_signature();
    change(mine);
    const std::string text = refusal(message, mine);
    EXPECT_NE(text.find("rank 2 (host node2, pid 1002)"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1 (host node1, pid 1001)"), std::string::npos) << text;
    EXPECT_NE(text.find(describe(some_signature())), std::string::npos) << text;
    EXPECT_NE(text.find(describe(mine)), std::string::npos) << text;
  };
  differs([](Signature& s) { s.collective = Collective::kAllReduce; });
  differs([](Signature& s) { s.dtype = DataType::kFloat32; });
  differs([](Signature& s) { s.op = ReduceOp::kSum; });
  differs([](Signature& s) { s.algorithm = Algorithm::kGtopk; });
  differs([](Signature& s) { s.put_back = PutBack::kOwn; });
  differs([](Signature& s) { s.d += 1; });
  differs([](Signature& s) { s.k += 1; });
}

TEST_F(HeaderTest, AnotherRootOrSequenceIsAMismatch) {
  Signature broadcast;
  broadcast.collective = Collective::kBroadcast;
  broadcast.root = 1;
  Message message{};
  write_header(message, broadcast, 7);
  Signature other = broadcast;
  other.root = 2;
  EXPECT_NE(refusal(message, other).find("root=1"), std::string::npos);
  EXPECT_NE(refusal(message, other).find("root=2"), std::string::npos);
  write_header(message, broadcast, 8);
  EXPECT_NE(refusal(message, broadcast).find("#8"), std::string::npos);
}

TEST_F(HeaderTest, AShortMessageIsRefused) {
  Message message{};
  write_header(message, some_signature(), 7);
  for (std::size_t bytes = 0; bytes < kHeaderBytes; ++bytes) {
    EXPECT_FALSE(refusal(std::span(message).first(bytes), some_signature()).empty()) << bytes;
  }
}

TEST_F(HeaderTest, AnotherFormatOrVersionIsNamed) {
  Message message{};
  write_header(message, some_signature(), 7);
  message[0] ^= std::byte{1};
  EXPECT_NE(refusal(message, some_signature()).find("wire format"), std::string::npos);
  message[0] ^= std::byte{1};
  message[4] = std::byte{9};
  EXPECT_NE(refusal(message, some_signature()).find("version 9"), std::string::npos);
}

}  // namespace
}  // namespace gtopk::collectives
