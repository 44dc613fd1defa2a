// Collectives: what ranks agree on, its fingerprint, and the header that carries the fingerprint.
#include "src/collectives/header.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "tests/support/inproc_ranks.hpp"

namespace gtopk::collectives {
namespace {

using ::testing::HasSubstr;
using Message = std::array<std::byte, kHeaderBytes>;

Agreement of_sparse(const std::function<void(sparse::SparseCall&)>& change) {
  sparse::SparseCall call;
  call.d = 1000;
  call.options.k = 10;
  change(call);
  return sparse::agreement(call, sparse::resolve(call));
}

TEST(Agreement, SaysNameAndFieldsInOrder) {
  EXPECT_EQ(Agreement("barrier").text(), "barrier()");
  EXPECT_EQ(Agreement("all_reduce")
                .number("d", 3)
                .type("dtype", DataType::kBfloat16)
                .word("op", to_string(ReduceOp::kSum))
                .text(),
            "all_reduce(d=3, dtype=bfloat16, op=SUM)");
  EXPECT_EQ(Agreement("x").type("dtype", opaque_type(9)).text(), "x(dtype=opaque(9))");
}

TEST(Agreement, SaysAListAsOneNumberWhereAllAreAlike) {
  const auto text = [](const std::vector<std::uint64_t>& list) {
    return Agreement("x").numbers("d", list).number("n", 7).text();
  };
  EXPECT_EQ(text({}), "x(d=0, n=7)");
  EXPECT_EQ(text({4, 4, 4}), "x(d=4, n=7)");
  EXPECT_EQ(text({4, 5, 4}), "x(d=[4, 5, 4], n=7)");
  std::vector<std::uint64_t> many(100, 1);
  many.back() = 2;
  EXPECT_THAT(text(many), HasSubstr("d=[1, 1, 1, 1, 1, 1, 1, 1, ... 100 in all, fingerprint "));
  std::vector<std::uint64_t> others = many;
  others.back() = 3;
  EXPECT_NE(text(many), text(others));
}

TEST(Agreement, TakesOneListAndNoMore) {
  Agreement agreement("x");
  agreement.numbers("a", std::vector<std::uint64_t>{1, 2});
  EXPECT_THROW(agreement.numbers("b", std::vector<std::uint64_t>{1, 2}), Error);
}

TEST(Agreement, TakesSoManyFieldsAndNoMore) {
  Agreement agreement("x");
  for (std::size_t i = 0; i < Agreement::kMaxFields; ++i) {
    agreement.number("n", i);
  }
  EXPECT_THROW(agreement.number("n", 0), Error);
}

TEST(Agreement, HasAnotherFingerprintForEveryDifference) {
  const std::vector<Agreement> all = {
      {},
      Agreement("barrier"),
      Agreement("barrier").number("", 0),
      Agreement("x").number("a", 1),
      Agreement("x").number("b", 1),
      Agreement("x").number("a", 2),
      Agreement("x").number("a", 1).number("b", 2),
      Agreement("x").number("a", 2).number("b", 1),
      Agreement("x").word("a", "1"),
      Agreement("x").word("a", "12345678"),
      Agreement("x").word("a", "123456789"),
      Agreement("x").word("a", "12345678").word("9", ""),
      Agreement("x").type("a", DataType::kInt8),
      Agreement("x").type("a", opaque_type(1)),
      Agreement("x").type("a", opaque_type(2)),
      Agreement("x").numbers("a", std::vector<std::uint64_t>{1, 2}),
      Agreement("x").numbers("a", std::vector<std::uint64_t>{2, 1}),
      Agreement("x").numbers("a", std::vector<std::uint64_t>{1, 2, 0}),
      of_sparse([](auto&) {}),
      of_sparse([](auto& c) { c.d += 1; }),
      of_sparse([](auto& c) { c.options.k += 1; }),
      of_sparse([](auto& c) { c.dtype = DataType::kFloat64; }),
      of_sparse([](auto& c) { c.options.op = ReduceOp::kAvg; }),
      of_sparse([](auto& c) { c.options.algorithm = "topk"; }),
      of_sparse([](auto& c) {
        c.options.algorithm = "topk";
        c.options.op = ReduceOp::kAvg;
      }),
      of_sparse([](auto& c) {
        c.options.algorithm = "topk";
        c.options.op = ReduceOp::kAvg;
        c.options.mean = MeanOver::kContributors;
      }),
      of_sparse([](auto& c) { c.options.put_back = PutBack::kMerged; }),
  };
  std::set<std::uint64_t> fingerprints;
  for (const Agreement& agreement : all) {
    fingerprints.insert(agreement.fingerprint());
  }
  EXPECT_EQ(fingerprints.size(), all.size());
}

// Fingerprints travel: every process, compiler and machine must compute the same number.
TEST(Agreement, HasTheSameFingerprintEverywhere) {
  EXPECT_EQ(Agreement("all_reduce")
                .number("d", 3)
                .type("dtype", DataType::kFloat32)
                .word("op", "SUM")
                .fingerprint(),
            10358638087539468246ULL);
}

TEST(Agreement, CountsTheTypeOfWhatIsOnlyMoved) {
  std::array<std::byte, 8> data{};
  EXPECT_NE(broadcast({data, DataType::kFloat32}, 0).agreement.fingerprint(),
            broadcast({data, DataType::kInt32}, 0).agreement.fingerprint());
  EXPECT_NE(
      all_gather({{data, DataType::kFloat32}, {data, DataType::kFloat32}}).agreement.fingerprint(),
      all_gather({{data, DataType::kInt32}, {data, DataType::kInt32}}).agreement.fingerprint());
}

/// An operation's view of rank 1 of 3, without a running operation.
class HeaderTest : public ::testing::Test {
 protected:
  support::InprocRanks ranks_{3};
  engine::Operation operation_{ranks_.engine(1), ranks_.group(1), 7, {}, barrier()};
  engine::GroupView view_{operation_};

  /// What is read, or why it was refused. No call is asked for: the fingerprints are equal.
  std::string refusal(std::span<const std::byte> message, Header* header = nullptr) {
    engine::Task<Header> reading = read_header(message, view_, 2);
    reading.start();
    EXPECT_TRUE(reading.done());
    try {
      const Header read = reading.take();
      if (header != nullptr) {
        *header = read;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
      return error.what();
    }
    return {};
  }
};

TEST_F(HeaderTest, CarriesEveryFieldUnchanged) {
  Message message{};
  write_header(message, view_, {.count = 99, .flags = Header::kNonFinite, .index_bytes = 8});
  Header header;
  EXPECT_EQ(refusal(message, &header), "");
  EXPECT_EQ(header.count_bytes, 0U);
  EXPECT_EQ(header.count, 99U);
  EXPECT_EQ(header.flags, Header::kNonFinite);
  EXPECT_EQ(header.index_bytes, 8U);
  EXPECT_EQ(header.sequence, 7U);
  EXPECT_EQ(header.fingerprint, Agreement("barrier").fingerprint());
}

TEST_F(HeaderTest, AShortMessageIsRefused) {
  Message message{};
  write_header(message, view_);
  for (std::size_t bytes = 0; bytes < kHeaderBytes; ++bytes) {
    EXPECT_FALSE(refusal(std::span(message).first(bytes)).empty()) << bytes;
  }
}

TEST_F(HeaderTest, AnotherFormatOrVersionIsNamed) {
  Message message{};
  write_header(message, view_);
  message[0] ^= std::byte{1};
  EXPECT_THAT(refusal(message), HasSubstr("wire format"));
  message[0] ^= std::byte{1};
  message[4] = std::byte{9};
  EXPECT_THAT(refusal(message), HasSubstr("version 9"));
}

// What else such a header says belongs to the other call, such as parts of a list.
TEST_F(HeaderTest, AnotherCallIsAskedForWhateverElseItsHeaderSays) {
  for (const Payload payload : {Payload{}, Payload{.parts = 2}, Payload{.flags = 0x8000}}) {
    Message message{};
    write_header(message, view_, payload);
    message.at(offsetof(Header, fingerprint)) ^= std::byte{1};
    engine::Task<Header> reading = read_header(message, view_, 2);
    reading.start();
    EXPECT_FALSE(reading.done()) << payload.parts;  // waits for the sender's answer
  }
}

TEST_F(HeaderTest, AnotherNumberOrMeaninglessBytesAreDamage) {
  for (const std::size_t at :
       {offsetof(Header, sequence), offsetof(Header, flags) + 1, offsetof(Header, parts)}) {
    Message message{};
    write_header(message, view_);
    message.at(at) ^= std::byte{2};
    EXPECT_THAT(refusal(message), HasSubstr("damaged header")) << at;
  }
}

}  // namespace
}  // namespace gtopk::collectives
