// Collectives: those whose ranks hold parts of what is reduced or moved, over the in-process
// transport: parts of many sizes, equal and not, empty ones among them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/reduction.hpp"
#include "tests/collectives/definitions.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using reference::Bytes;
using support::InprocRanks;
using ::testing::HasSubstr;

using Sizes = std::vector<std::uint64_t>;

transport::inproc::FabricOptions network(std::uint64_t seed) {
  return support::network(seed, std::chrono::microseconds(seed / 4 % 2 * 50));
}

std::uint64_t before(const Sizes& sizes, std::uint32_t part) {
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < part; ++i) sum += sizes[i];
  return sum;
}

std::uint64_t total(const Sizes& sizes) {
  return before(sizes, static_cast<std::uint32_t>(sizes.size()));
}

/// Sizes about `mean`: equal ones, then unequal ones with empty parts in between.
std::vector<Sizes> layouts(std::uint32_t ranks, std::uint64_t mean) {
  Sizes uneven;
  for (std::uint32_t part = 0; part < ranks; ++part) {
    uneven.push_back(part % 3 == 1 ? 0 : mean / (1 + part % 2) + std::uint64_t{5} * part);
  }
  Sizes last_alone(ranks - 1, 0);
  last_alone.push_back(mean * ranks);
  return {Sizes(ranks, mean), uneven, last_alone};
}

std::vector<Segment> segments(Bytes& bytes, const Sizes& sizes, DataType type) {
  std::vector<Segment> parts;
  for (std::uint32_t part = 0; part < sizes.size(); ++part) {
    parts.push_back({bytes.data() + before(sizes, part) * size_of(type), sizes[part]});
  }
  return parts;
}

void expect_good(const std::vector<support::SharedEnding>& endings) {
  for (const auto& ending : endings) ASSERT_TRUE(ending->good()) << ending->text();
}

/// Every rank's part of the reduction, as the header of reduce_scatter defines it.
std::vector<Bytes> defined_reduce_scatter(const std::vector<Bytes>& inputs, const Sizes& sizes,
                                          DataType type, ReduceOp op) {
  const auto ranks = static_cast<std::uint32_t>(inputs.size());
  const std::size_t element = size_of(type);
  const bool tree = total(sizes) * element <= collectives::kRecursiveDoublingBytes;
  const Bytes all = tree ? test::tree_sum(inputs, total(sizes), type, op) : Bytes{};
  std::vector<Bytes> parts;
  for (std::uint32_t part = 0; part < ranks; ++part) {
    const std::uint64_t begin = before(sizes, part);
    Bytes sum(sizes[part] * element);
    if (!tree) {
      sum = test::ring_sum(inputs, part, begin, sizes[part], type, op);
    } else if (!sum.empty()) {
      std::memcpy(sum.data(), all.data() + begin * element, sum.size());
    }
    if (op == ReduceOp::kAvg) collectives::divide(sum.data(), sizes[part], type, ranks);
    parts.push_back(sum);
  }
  return parts;
}

/// Runs it and compares every rank with the definition, bit for bit.
void expect_reduce_scatter(const Sizes& sizes, DataType type, ReduceOp op, std::uint64_t seed) {
  SCOPED_TRACE(fmt::format("P={} {} {} elements, {}, seed {}", sizes.size(), total(sizes),
                           to_string(type), to_string(op), seed));
  const auto size = static_cast<std::uint32_t>(sizes.size());
  reference::Random random(seed);
  std::vector<Bytes> inputs;
  while (inputs.size() < size) {
    inputs.push_back(test::random_elements(random, total(sizes), type));
  }
  const std::vector<Bytes> untouched = inputs;
  const std::vector<Bytes> expected = defined_reduce_scatter(inputs, sizes, type, op);
  std::vector<Bytes> outputs;
  for (const std::uint64_t part : sizes) outputs.emplace_back(part * size_of(type));
  InprocRanks ranks(size, network(seed));
  const auto endings = ranks.run([&](std::uint32_t rank) {
    return gtopk::reduce_scatter(segments(inputs[rank], sizes, type),
                                 {outputs[rank].data(), sizes[rank]}, type, op);
  });
  expect_good(endings);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    ASSERT_TRUE(outputs[rank] == expected[rank]) << "rank " << rank;
    ASSERT_TRUE(inputs[rank] == untouched[rank]) << "rank " << rank;
  }
  ASSERT_TRUE(ranks.close().empty());
}

class Parts : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(Parts, ReduceScatterIsItsDefinitionForEveryTypeAndOperation) {
  for (const DataType type : reference::named_values<DataType>()) {
    for (const ReduceOp op : reference::named_values<ReduceOp>()) {
      try {
        collectives::check_reduction(type, op);
      } catch (const Error&) {
        continue;
      }
      const auto seed = 1 + static_cast<unsigned>(type) + 16U * static_cast<unsigned>(op);
      expect_reduce_scatter(layouts(GetParam(), 9)[1], type, op, seed);
    }
  }
}

TEST_P(Parts, ReduceScatterIsItsDefinitionOnBothSidesOfTheRingForEveryLayout) {
  const std::uint64_t small = collectives::kRecursiveDoublingBytes / 4 / GetParam() / 2;
  std::uint64_t seed = 0;
  for (const std::uint64_t mean : {std::uint64_t{0}, std::uint64_t{1}, small, 4 * small}) {
    for (const Sizes& sizes : layouts(GetParam(), mean)) {
      expect_reduce_scatter(sizes, DataType::kFloat32, ReduceOp::kSum, ++seed);
      expect_reduce_scatter(sizes, DataType::kBfloat16, ReduceOp::kAvg, ++seed);
    }
  }
}

// Parts of several pieces, and of different numbers of them.
TEST_P(Parts, ReduceScatterIsItsDefinitionWherePartsHaveManyPieces) {
  if (GetParam() > 5) return;
  const std::uint64_t mean = 7 * collectives::kPieceBytes / 4;
  std::uint64_t seed = 0;
  for (const Sizes& sizes : layouts(GetParam(), mean)) {
    expect_reduce_scatter(sizes, DataType::kFloat32, ReduceOp::kSum, ++seed);
  }
}

TEST_P(Parts, ReduceScatterWritesIntoItsOwnPart) {
  const std::uint32_t size = GetParam();
  for (const std::uint64_t d : {std::uint64_t{3}, collectives::kRecursiveDoublingBytes / 4}) {
    const Sizes sizes(size, d);
    reference::Random random(d);
    std::vector<Bytes> inputs;
    while (inputs.size() < size) {
      inputs.push_back(test::random_elements(random, total(sizes), DataType::kFloat32));
    }
    const auto expected = defined_reduce_scatter(inputs, sizes, DataType::kFloat32, ReduceOp::kSum);
    InprocRanks ranks(size, network(d));
    expect_good(ranks.run([&](std::uint32_t rank) {
      const std::vector<Segment> parts = segments(inputs[rank], sizes, DataType::kFloat32);
      return gtopk::reduce_scatter(parts, parts[rank], DataType::kFloat32);
    }));
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      const auto begin = inputs[rank].begin() + static_cast<std::ptrdiff_t>(rank * d * 4);
      ASSERT_TRUE(std::equal(expected[rank].begin(), expected[rank].end(), begin));
    }
    ASSERT_TRUE(ranks.close().empty());
  }
}

TEST_P(Parts, AllGatherCollectsPartsOfAnySizes) {
  const std::uint32_t size = GetParam();
  for (const Sizes& sizes : layouts(size, 1000)) {
    Bytes expected(total(sizes));
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<std::byte>(i * 7);
    std::vector<Bytes> data(size, Bytes(expected.size()));
    InprocRanks ranks(size, network(total(sizes)));
    expect_good(ranks.run([&](std::uint32_t rank) {
      std::vector<std::span<std::byte>> rooms;
      for (std::uint32_t part = 0; part < size; ++part) {
        rooms.push_back(std::span(data[rank]).subspan(before(sizes, part), sizes[part]));
      }
      std::copy_n(expected.begin() + static_cast<std::ptrdiff_t>(before(sizes, rank)), sizes[rank],
                  rooms[rank].begin());
      return gtopk::all_gather(rooms);
    }));
    for (const Bytes& bytes : data) ASSERT_TRUE(bytes == expected);
    ASSERT_TRUE(ranks.close().empty());
  }
}

TEST_P(Parts, ReduceGivesTheRootTheBitsOfTheAllReduceAndLeavesTheOthersAlone) {
  const std::uint32_t size = GetParam();
  const std::uint64_t last_small = collectives::kRecursiveDoublingBytes / 4;
  for (std::uint32_t root = 0; root < size; ++root) {
    for (const std::uint64_t d : {std::uint64_t{0}, std::uint64_t{3}, last_small, last_small + 7}) {
      const ReduceOp op = d % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAvg;
      SCOPED_TRACE(fmt::format("P={} root {} d={} {}", size, root, d, to_string(op)));
      reference::Random random(d + root);
      std::vector<Bytes> inputs;
      while (inputs.size() < size) {
        inputs.push_back(test::random_elements(random, d, DataType::kFloat32));
      }
      std::vector<Bytes> data = inputs;
      InprocRanks ranks(size, network(d + root));
      expect_good(ranks.run([&](std::uint32_t rank) {
        return gtopk::reduce(data[rank].data(), d, root, DataType::kFloat32, op);
      }));
      inputs[root] = test::defined_all_reduce(inputs, d, DataType::kFloat32, op);
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        ASSERT_TRUE(data[rank] == inputs[rank]) << "rank " << rank;
      }
      ASSERT_TRUE(ranks.close().empty());
    }
  }
}

std::vector<std::span<std::byte>> spans(Bytes& bytes, const Sizes& sizes) {
  std::vector<std::span<std::byte>> parts;
  for (std::uint32_t part = 0; part < sizes.size(); ++part) {
    parts.push_back(std::span(bytes).subspan(before(sizes, part), sizes[part]));
  }
  return parts;
}

std::vector<std::span<const std::byte>> constant(const std::vector<std::span<std::byte>>& spans) {
  return {spans.begin(), spans.end()};
}

Bytes counted(std::uint64_t bytes, std::uint64_t from) {
  Bytes made(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>((i + from) * 31 >> 3U);
  return made;
}

TEST_P(Parts, GatherAndScatterMovePartsOfAnySizesForEveryRoot) {
  const std::uint32_t size = GetParam();
  for (std::uint32_t root = 0; root < size; ++root) {
    for (const std::uint64_t mean : {1UL, 20'000UL}) {
      for (const Sizes& sizes : layouts(size, mean)) {
        SCOPED_TRACE(fmt::format("P={} root {} mean {}", size, root, mean));
        Bytes all = counted(total(sizes), root);
        const auto parts = spans(all, sizes);
        Bytes gathered(all.size());
        std::vector<Bytes> got;
        for (const std::uint64_t each : sizes) got.emplace_back(each);
        InprocRanks ranks(size, network(root + mean));
        expect_good(ranks.run([&](std::uint32_t rank) {
          std::vector<std::span<std::byte>> rooms;
          if (rank == root) rooms = spans(gathered, sizes);
          return gtopk::gather(parts[rank], rooms, root);
        }));
        ASSERT_TRUE(gathered == all);
        expect_good(ranks.run([&](std::uint32_t rank) {
          std::vector<std::span<const std::byte>> given;
          if (rank == root) given = constant(parts);
          return gtopk::scatter(given, got[rank], root);
        }));
        for (std::uint32_t rank = 0; rank < size; ++rank) {
          ASSERT_TRUE(std::ranges::equal(got[rank], parts[rank])) << "rank " << rank;
        }
        ASSERT_TRUE(ranks.close().empty());
      }
    }
  }
}

/// Bytes from one rank to another: some of none, no two rows or columns alike.
std::uint64_t pair_size(std::uint32_t from, std::uint32_t to, std::uint64_t unit) {
  return (from + 2 * to) % 3 == 0 ? 0 : unit * (1 + from) + to;
}

TEST_P(Parts, AllToAllMovesPartsOfAnySizes) {
  const std::uint32_t size = GetParam();
  for (const std::uint64_t unit : {0UL, 1UL, 9'000UL}) {
    std::vector<Bytes> given;
    std::vector<Bytes> got;
    std::vector<Sizes> sent(size);
    std::vector<Sizes> expected(size);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (std::uint32_t other = 0; other < size; ++other) {
        sent[rank].push_back(pair_size(rank, other, unit));
        expected[rank].push_back(pair_size(other, rank, unit));
      }
      given.push_back(counted(total(sent[rank]), std::uint64_t{1000} * rank));
      got.emplace_back(total(expected[rank]));
    }
    InprocRanks ranks(size, network(unit));
    expect_good(ranks.run([&](std::uint32_t rank) {
      return gtopk::all_to_all(constant(spans(given[rank], sent[rank])),
                               spans(got[rank], expected[rank]));
    }));
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (std::uint32_t from = 0; from < size; ++from) {
        ASSERT_TRUE(std::ranges::equal(spans(got[rank], expected[rank])[from],
                                       spans(given[from], sent[from])[rank]))
            << "P=" << size << " from " << from << " to " << rank;
      }
    }
    ASSERT_TRUE(ranks.close().empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Parts, ::testing::Values(1, 2, 3, 4, 5, 8));

/// One rank calls `odd`, the others `usual`: all fail, both texts are in each error, and the group
/// works on.
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
      for (const std::string& text : texts) ASSERT_THAT(ending->text(), HasSubstr(text));
    }
    ASSERT_EQ(support::group_works(ranks), "");
    ASSERT_TRUE(ranks.close().empty());
  }
}

TEST(PartsThatDiffer, OfReduceScatterAreAnErrorOnEveryRank) {
  for (const std::uint64_t d : {std::uint64_t{8}, std::uint64_t{30'000}}) {
    std::vector<Bytes> memory(4, Bytes(5 * d * 4));
    const auto call = [&](const Sizes& sizes, DataType type, ReduceOp op) {
      return [&memory, sizes, type, op](std::uint32_t rank) {
        std::vector<Segment> parts = segments(memory[rank], sizes, type);
        return gtopk::reduce_scatter(parts, parts[rank], type, op);
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
  std::vector<Bytes> memory(3, Bytes(64));
  const auto call = [&](const Sizes& sizes) {
    return [&memory, sizes](std::uint32_t rank) {
      std::vector<std::span<std::byte>> rooms;
      for (std::uint32_t part = 0; part < sizes.size(); ++part) {
        rooms.push_back(std::span(memory[rank]).subspan(before(sizes, part), sizes[part]));
      }
      return gtopk::all_gather(rooms);
    };
  };
  expect_mismatch(3, call({4, 4, 4}), call({4, 5, 4}), {"bytes=4,", "bytes=[4, 5, 4],"});
  expect_mismatch(3, call({1, 2, 3}), call({3, 2, 1}), {"bytes=[1, 2, 3],", "bytes=[3, 2, 1],"});
}

// As many elements in all, in other tensors.
TEST(PartsThatDiffer, OfAListAreAnErrorOnEveryRank) {
  std::vector<Bytes> memory(3, Bytes(64));
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
    std::vector<Bytes> memory(3, Bytes(4 * d + 4));
    const auto call = [&](std::uint64_t elements, std::uint32_t root) {
      return [&memory, elements, root](std::uint32_t rank) {
        return gtopk::reduce(memory[rank].data(), elements, root, DataType::kFloat32);
      };
    };
    expect_mismatch(3, call(d, 0), call(d, 2), {"root=0)", "root=2)"});
    expect_mismatch(3, call(d, 1), call(d + 1, 1),
                    {fmt::format("d={},", d), fmt::format("d={},", d + 1)});
  }
}

// Lengths are each pair's own business, and yet every rank hears of two that differ, before
// anything has been moved.
TEST(PartsThatDiffer, OfWhatIsMovedAreAnErrorOnEveryRank) {
  constexpr std::uint32_t kRanks = 4;
  for (const std::uint64_t bytes : {std::uint64_t{40}, std::uint64_t{100'000}}) {
    std::vector<Bytes> memory(kRanks, Bytes(kRanks * (bytes + 8)));
    std::vector<Bytes> rooms(kRanks, Bytes(kRanks * (bytes + 8), std::byte{7}));
    const std::vector<Bytes> untouched = rooms;
    const auto gather = [&](std::uint64_t mine, std::uint64_t room) {
      return [&, mine, room](std::uint32_t rank) {
        std::vector<std::span<std::byte>> list;
        Sizes sizes(kRanks, room);
        sizes[1] = mine;
        if (rank == 1) list = spans(rooms[rank], sizes);
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
        if (rank == 2) list = constant(spans(memory[rank], sizes));
        return gtopk::scatter(list, std::span(rooms[rank]).first(mine), 2);
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
        return gtopk::all_to_all(constant(spans(memory[rank], sizes)), spans(rooms[rank], sizes));
      };
    };
    expect_mismatch(
        kRanks, exchange(bytes), exchange(bytes + 8),
        {"ranks differ: rank ", fmt::format("{} ", bytes), fmt::format("{} ", bytes + 8)});
    EXPECT_TRUE(rooms == untouched);
  }
}

TEST(PartsThatDiffer, FromWhatTheGroupWantsAreRefused) {
  InprocRanks ranks(3);
  Bytes memory(64);
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
  const auto parts = segments(memory, {2, 3, 4}, DataType::kFloat32);
  EXPECT_EQ(refusal(reduce_scatter(parts, parts[1], DataType::kFloat32)), "taken");
  EXPECT_THAT(refusal(reduce_scatter({parts[0], parts[1]}, parts[1], DataType::kFloat32)),
              HasSubstr("3 expected, 2 given"));
  EXPECT_THAT(refusal(reduce_scatter(parts, parts[0], DataType::kFloat32)),
              HasSubstr("part 1, of 3 elements; given 2"));

  const auto rooms = spans(memory, {2, 3, 4});
  const auto given = constant(rooms);
  EXPECT_EQ(refusal(gather(rooms[1], rooms, 1)), "taken");
  EXPECT_EQ(refusal(gather(rooms[1], {}, 0)), "taken");
  EXPECT_THAT(refusal(gather(rooms[1], rooms, 0)), HasSubstr("0 expected on rank 1, 3 given"));
  EXPECT_THAT(refusal(gather(rooms[1], {}, 1)), HasSubstr("3 expected on rank 1, 0 given"));
  EXPECT_THAT(refusal(gather(rooms[0], rooms, 1)), HasSubstr("2 bytes, and 3 in its room"));
  EXPECT_THAT(refusal(gather(rooms[0], {}, 3)), HasSubstr("the root is rank 3"));
  EXPECT_EQ(refusal(scatter(given, rooms[1], 1)), "taken");
  EXPECT_EQ(refusal(scatter({}, rooms[1], 2)), "taken");
  EXPECT_THAT(refusal(scatter(given, rooms[1], 2)), HasSubstr("0 expected on rank 1, 3 given"));
  EXPECT_THAT(refusal(scatter({}, rooms[1], 1)), HasSubstr("3 expected on rank 1, 0 given"));
  EXPECT_THAT(refusal(scatter(given, rooms[2], 1)), HasSubstr("4 bytes, and 3 in its part"));
  EXPECT_EQ(refusal(all_to_all(given, rooms)), "taken");
  EXPECT_THAT(refusal(all_to_all({given[0]}, rooms)), HasSubstr("1 parts and 3 rooms given"));
  EXPECT_THAT(refusal(all_to_all({given[0], given[2], given[1]}, rooms)),
              HasSubstr("4 bytes sent, 3 expected"));
}

}  // namespace
}  // namespace gtopk
