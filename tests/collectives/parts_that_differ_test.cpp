// Collectives: ranks whose parts differ get an error that names both sides, and invalid parts are
// refused before anything is sent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "gtopk/collectives.hpp"
#include "tests/collectives/parts.hpp"
#include "tests/support/calls.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using test::before;
using test::buffers;
using test::constant;
using test::network;
using test::Sizes;
using test::spans;
using test::total;
using ::testing::HasSubstr;

/// One rank calls `odd`, the others `usual`: every rank fails with both texts in its error, and the
/// group still works.
void expect_mismatch(std::uint32_t size, const std::function<Collective(std::uint32_t)>& usual,
                     const std::function<Collective(std::uint32_t)>& odd,
                     const std::vector<std::string>& texts) {
  for (std::uint32_t odd_rank = 0; odd_rank < size; ++odd_rank) {
    SCOPED_TRACE(fmt::format("P={}, rank {} differs", size, odd_rank));
    InprocRanks ranks(size, network(odd_rank));
    const auto endings =
        ranks.run([&](std::uint32_t rank) { return rank == odd_rank ? odd(rank) : usual(rank); });
    for (const auto& ending : endings) {
      ASSERT_TRUE(ending->ended);
      ASSERT_TRUE(ending->error.has_value());
      ASSERT_EQ(ending->error->kind(), ErrorKind::kMismatch) << ending->text();
      for (const std::string& text : texts) {
        ASSERT_THAT(ending->text(), HasSubstr(text));
      }
    }
    ASSERT_EQ(support::group_works(ranks), "");
    ASSERT_TRUE(ranks.close().empty());
  }
}

TEST(PartsThatDiffer, OfReduceScatterAreAnErrorOnEveryRank) {
  for (const std::uint64_t d : {std::uint64_t{8}, std::uint64_t{30'000}}) {
    std::vector<reference::Bytes> memory(4, reference::Bytes(5 * d * 4));
    const auto call = [&](const Sizes& sizes, DataType type, ReduceOp op) {
      return [&memory, sizes, type, op](std::uint32_t rank) {
        const Buffers parts = buffers(memory[rank], sizes, type);
        return gtopk::reduce_scatter(parts, parts[rank], op);
      };
    };
    const auto usual = call(Sizes(4, d), DataType::kFloat32, ReduceOp::kSum);
    expect_mismatch(4, usual, call({d, d, d, d + 1}, DataType::kFloat32, ReduceOp::kSum),
                    {fmt::format("(d={},", d), fmt::format("(d=[{0}, {0}, {0}, {1}],", d, d + 1)});
    expect_mismatch(4, usual, call(Sizes(4, d), DataType::kInt32, ReduceOp::kSum),
                    {"dtype=float32", "dtype=int32"});
    expect_mismatch(4, usual, call(Sizes(4, d), DataType::kFloat32, ReduceOp::kMax),
                    {"op=SUM", "op=MAX"});
    expect_mismatch(4, usual, [](std::uint32_t) { return gtopk::barrier(); },
                    {"reduce_scatter(", "barrier()"});
  }
}

TEST(PartsThatDiffer, OfAllGatherAreAnErrorOnEveryRank) {
  std::vector<reference::Bytes> memory(3, reference::Bytes(64));
  const auto call = [&](const Sizes& sizes) {
    return [&memory, sizes](std::uint32_t rank) {
      std::vector<std::span<std::byte>> outputs;
      for (std::uint32_t part = 0; part < sizes.size(); ++part) {
        outputs.push_back(std::span(memory[rank]).subspan(before(sizes, part), sizes[part]));
      }
      return gtopk::all_gather(outputs);
    };
  };
  expect_mismatch(3, call({4, 4, 4}), call({4, 5, 4}), {"bytes=4,", "bytes=[4, 5, 4],"});
  expect_mismatch(3, call({1, 2, 3}), call({3, 2, 1}), {"bytes=[1, 2, 3],", "bytes=[3, 2, 1],"});
}

// The same number of elements in total, in other tensors.
TEST(PartsThatDiffer, OfAListAreAnErrorOnEveryRank) {
  std::vector<reference::Bytes> memory(3, reference::Bytes(64));
  const auto call = [&](const Sizes& sizes) {
    return [&memory, sizes](std::uint32_t rank) {
      return coalesced(gtopk::all_reduce(memory[rank].data(), total(sizes), DataType::kFloat32),
                       sizes);
    };
  };
  expect_mismatch(3, call({4, 4}), call({3, 5}),
                  {"(d=8, dtype=float32, op=SUM, tensors=2, sizes=4)", "sizes=[3, 5])"});
  expect_mismatch(3, call({8}), call({4, 4}), {"tensors=1", "tensors=2"});
}

TEST(PartsThatDiffer, OfReduceAreAnErrorOnEveryRank) {
  for (const std::uint64_t d : {std::uint64_t{8}, std::uint64_t{30'000}}) {
    std::vector<reference::Bytes> memory(3, reference::Bytes(4 * d + 4));
    const auto call = [&](std::uint64_t elements, std::uint32_t root) {
      return [&memory, elements, root](std::uint32_t rank) {
        return gtopk::reduce({memory[rank].data(), elements, DataType::kFloat32}, root);
      };
    };
    expect_mismatch(3, call(d, 0), call(d, 2), {"root=0)", "root=2)"});
    expect_mismatch(3, call(d, 1), call(d + 1, 1),
                    {fmt::format("d={},", d), fmt::format("d={},", d + 1)});
  }
}

// Lengths concern one pair of ranks each, and yet every rank gets the error if two differ, before
// any data has moved.
TEST(PartsThatDiffer, OfWhatIsMovedAreAnErrorOnEveryRank) {
  constexpr std::uint32_t kRanks = 4;
  for (const std::uint64_t bytes : {std::uint64_t{40}, std::uint64_t{100'000}}) {
    std::vector<reference::Bytes> memory(kRanks, reference::Bytes(kRanks * (bytes + 8)));
    std::vector<reference::Bytes> outputs(kRanks,
                                          reference::Bytes(kRanks * (bytes + 8), std::byte{7}));
    const std::vector<reference::Bytes> untouched = outputs;
    const auto gather = [&](std::uint64_t mine, std::uint64_t capacity) {
      return [&, mine, capacity](std::uint32_t rank) {
        std::vector<std::span<std::byte>> list;
        Sizes sizes(kRanks, capacity);
        sizes[1] = mine;
        if (rank == 1) {
          list = spans(outputs[rank], sizes);
        }
        return gtopk::gather(std::span(memory[rank]).first(mine), list, 1);
      };
    };
    expect_mismatch(kRanks, gather(bytes, bytes),
                    [&](std::uint32_t rank) {
                      return rank == 1 ? gather(bytes, bytes + 8)(rank)
                                       : gather(bytes + 8, bytes)(rank);
                    },
                    {"ranks differ: rank ", "bytes to rank 1", "expects "});
    const auto scatter = [&](std::uint64_t part, std::uint64_t mine) {
      return [&, part, mine](std::uint32_t rank) {
        std::vector<std::span<const std::byte>> list;
        Sizes sizes(kRanks, part);
        sizes[2] = mine;
        if (rank == 2) {
          list = constant(spans(memory[rank], sizes));
        }
        return gtopk::scatter(list, std::span(outputs[rank]).first(mine), 2);
      };
    };
    expect_mismatch(kRanks, scatter(bytes, bytes),
                    [&](std::uint32_t rank) {
                      return rank == 2 ? scatter(bytes - 8, bytes)(rank)
                                       : scatter(bytes, bytes - 8)(rank);
                    },
                    {"ranks differ: rank 2", "expects "});
    const auto exchange = [&](std::uint64_t each) {
      return [&, each](std::uint32_t rank) {
        Sizes sizes(kRanks, each);
        return gtopk::all_to_all(constant(spans(memory[rank], sizes)), spans(outputs[rank], sizes));
      };
    };
    expect_mismatch(
        kRanks, exchange(bytes), exchange(bytes + 8),
        {"ranks differ: rank ", fmt::format("{} ", bytes), fmt::format("{} ", bytes + 8)});
    EXPECT_TRUE(outputs == untouched);
  }
}

TEST(PartsThatDiffer, FromWhatTheGroupWantsAreRefused) {
  InprocRanks ranks(3);
  reference::Bytes memory(64);
  const GroupShape shape{.name = "default", .rank = 1, .size = 3};
  const auto refusal = [&](const Collective& collective) -> std::string {
    try {
      collective.check(shape);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "taken";
  };
  const auto parts = buffers(memory, {2, 3, 4}, DataType::kFloat32);
  EXPECT_EQ(refusal(reduce_scatter(parts, parts[1])), "taken");
  EXPECT_THAT(refusal(reduce_scatter({parts[0], parts[1]}, parts[1])),
              HasSubstr("3 expected, 2 given"));
  EXPECT_THAT(refusal(reduce_scatter(parts, parts[0])),
              HasSubstr("part 1's size, 3 elements; given 2"));

  const auto outputs = spans(memory, {2, 3, 4});
  const auto given = constant(outputs);
  EXPECT_EQ(refusal(gather(outputs[1], outputs, 1)), "taken");
  EXPECT_EQ(refusal(gather(outputs[1], {}, 0)), "taken");
  EXPECT_THAT(refusal(gather(outputs[1], outputs, 0)), HasSubstr("0 expected on rank 1, 3 given"));
  EXPECT_THAT(refusal(gather(outputs[1], {}, 1)), HasSubstr("3 expected on rank 1, 0 given"));
  EXPECT_THAT(refusal(gather(outputs[0], outputs, 1)),
              HasSubstr("2 bytes in its own buffer, got 3"));
  EXPECT_THAT(refusal(gather(outputs[0], {}, 3)), HasSubstr("the root is rank 3"));
  EXPECT_EQ(refusal(scatter(given, outputs[1], 1)), "taken");
  EXPECT_EQ(refusal(scatter({}, outputs[1], 2)), "taken");
  EXPECT_THAT(refusal(scatter(given, outputs[1], 2)), HasSubstr("0 expected on rank 1, 3 given"));
  EXPECT_THAT(refusal(scatter({}, outputs[1], 1)), HasSubstr("3 expected on rank 1, 0 given"));
  EXPECT_THAT(refusal(scatter(given, outputs[2], 1)), HasSubstr("4 bytes in its own part, got 3"));
  EXPECT_EQ(refusal(all_to_all(given, outputs)), "taken");
  EXPECT_THAT(refusal(all_to_all({given[0]}, outputs)), HasSubstr("1 parts and 3 buffers given"));
  EXPECT_THAT(refusal(all_to_all({given[0], given[2], given[1]}, outputs)),
              HasSubstr("4 bytes sent, 3 expected"));
}

}  // namespace
}  // namespace gtopk
