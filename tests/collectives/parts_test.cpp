// Collectives: those in which ranks reduce or move parts, over the in-process transport.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/reduction.hpp"
#include "tests/collectives/definitions.hpp"
#include "tests/collectives/parts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using test::before;
using test::buffers;
using test::constant;
using test::expect_good;
using test::layouts;
using test::network;
using test::Sizes;
using test::spans;
using test::total;

/// Every rank's part of the reduction, as the header of reduce_scatter defines it.
std::vector<reference::Bytes> defined_reduce_scatter(const std::vector<reference::Bytes>& inputs,
                                                     const Sizes& sizes, DataType type,
                                                     ReduceOp op) {
  const auto ranks = static_cast<std::uint32_t>(inputs.size());
  const std::size_t element = size_of(type);
  const bool tree = total(sizes) * element <= collectives::kRecursiveDoublingBytes;
  const reference::Bytes all =
      tree ? test::tree_sum(inputs, total(sizes), type, op) : reference::Bytes{};
  std::vector<reference::Bytes> parts;
  for (std::uint32_t part = 0; part < ranks; ++part) {
    const std::uint64_t begin = before(sizes, part);
    reference::Bytes sum(sizes[part] * element);
    if (!tree) {
      sum = test::ring_sum(inputs, part, begin, sizes[part], type, op);
    } else if (!sum.empty()) {
      std::memcpy(sum.data(), all.data() + begin * element, sum.size());
    }
    if (op == ReduceOp::kAvg) {
      collectives::divide(sum.data(), sizes[part], type, ranks);
    }
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
  std::vector<reference::Bytes> inputs;
  while (inputs.size() < size) {
    inputs.push_back(test::random_elements(random, total(sizes), type));
  }
  const std::vector<reference::Bytes> untouched = inputs;
  const std::vector<reference::Bytes> expected =
      defined_reduce_scatter(test::multiplied(inputs, type, op), sizes, type, op);
  std::vector<reference::Bytes> outputs;
  for (const std::uint64_t part : sizes) {
    outputs.emplace_back(part * size_of(type));
  }
  InprocRanks ranks(size, network(seed));
  const auto endings = ranks.run([&](std::uint32_t rank) {
    return gtopk::reduce_scatter(buffers(inputs[rank], sizes, type),
                                 {outputs[rank].data(), sizes[rank], type}, op,
                                 test::factor_of(rank, op));
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

TEST_P(Parts, ReduceScatterAnyLayoutAroundRingSize_EqualsDefinition) {
  const std::uint64_t small = collectives::kRecursiveDoublingBytes / 4 / GetParam() / 2;
  std::uint64_t seed = 0;
  for (const std::uint64_t mean : {std::uint64_t{0}, std::uint64_t{1}, small, 4 * small}) {
    for (const Sizes& sizes : layouts(GetParam(), mean)) {
      expect_reduce_scatter(sizes, DataType::kFloat32, ReduceOp::kSum, ++seed);
      expect_reduce_scatter(sizes, DataType::kBfloat16, ReduceOp::kAvg, ++seed);
      expect_reduce_scatter(sizes, DataType::kFloat64, ReduceOp::kPremulSum, ++seed);
    }
  }
}

// Parts of several pieces, and of different numbers of them.
TEST_P(Parts, ReduceScatterIsItsDefinitionWherePartsHaveManyPieces) {
  if (GetParam() > 5) {
    return;
  }
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
    std::vector<reference::Bytes> inputs;
    while (inputs.size() < size) {
      inputs.push_back(test::random_elements(random, total(sizes), DataType::kFloat32));
    }
    const auto expected = defined_reduce_scatter(inputs, sizes, DataType::kFloat32, ReduceOp::kSum);
    InprocRanks ranks(size, network(d));
    expect_good(ranks.run([&](std::uint32_t rank) {
      const Buffers parts = buffers(inputs[rank], sizes, DataType::kFloat32);
      return gtopk::reduce_scatter(parts, parts[rank]);
    }));
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      const auto begin = inputs[rank].begin() + static_cast<std::ptrdiff_t>(rank * d * 4);
      ASSERT_TRUE(std::equal(expected[rank].begin(), expected[rank].end(), begin));
    }
    ASSERT_TRUE(ranks.close().empty());
  }
}

TEST_P(Parts, AllGatherCollectsPartsOfAnySizes) {
  for (const Sizes& sizes : layouts(GetParam(), 1000)) {
    test::expect_all_gather(sizes);
  }
}

TEST_P(Parts, Reduce_GivesRootAllReduceBitsAndKeepsOtherInputs) {
  const std::uint32_t size = GetParam();
  const std::uint64_t last_small = collectives::kRecursiveDoublingBytes / 4;
  for (std::uint32_t root = 0; root < size; ++root) {
    for (const std::uint64_t d : {std::uint64_t{0}, std::uint64_t{3}, last_small, last_small + 7}) {
      const std::vector<ReduceOp> ops = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum};
      const ReduceOp op = ops[(d + root) % ops.size()];
      SCOPED_TRACE(fmt::format("P={} root {} d={} {}", size, root, d, to_string(op)));
      reference::Random random(d + root);
      std::vector<reference::Bytes> inputs;
      while (inputs.size() < size) {
        inputs.push_back(test::random_elements(random, d, DataType::kFloat32));
      }
      std::vector<reference::Bytes> data = inputs;
      InprocRanks ranks(size, network(d + root));
      expect_good(ranks.run([&](std::uint32_t rank) {
        return gtopk::reduce({data[rank].data(), d, DataType::kFloat32}, root, op,
                             test::factor_of(rank, op));
      }));
      inputs[root] = test::defined_all_reduce(test::multiplied(inputs, DataType::kFloat32, op), d,
                                              DataType::kFloat32, op);
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        ASSERT_TRUE(data[rank] == inputs[rank]) << "rank " << rank;
      }
      ASSERT_TRUE(ranks.close().empty());
    }
  }
}

reference::Bytes counted(std::uint64_t bytes, std::uint64_t from) {
  reference::Bytes made(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) {
    made[i] = static_cast<std::byte>((i + from) * 31 >> 3U);
  }
  return made;
}

TEST_P(Parts, GatherAndScatterMovePartsOfAnySizesForEveryRoot) {
  const std::uint32_t size = GetParam();
  for (std::uint32_t root = 0; root < size; ++root) {
    for (const std::uint64_t mean : {1UL, 20'000UL}) {
      for (const Sizes& sizes : layouts(size, mean)) {
        SCOPED_TRACE(fmt::format("P={} root {} mean {}", size, root, mean));
        reference::Bytes all = counted(total(sizes), root);
        const auto parts = spans(all, sizes);
        reference::Bytes gathered(all.size());
        std::vector<reference::Bytes> got;
        for (const std::uint64_t each : sizes) {
          got.emplace_back(each);
        }
        InprocRanks ranks(size, network(root + mean));
        expect_good(ranks.run([&](std::uint32_t rank) {
          std::vector<std::span<std::byte>> outputs;
          if (rank == root) {
            outputs = spans(gathered, sizes);
          }
          return gtopk::gather(parts[rank], outputs, root);
        }));
        ASSERT_TRUE(gathered == all);
        expect_good(ranks.run([&](std::uint32_t rank) {
          std::vector<std::span<const std::byte>> given;
          if (rank == root) {
            given = constant(parts);
          }
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

/// reference::Bytes from one rank to another: some pairs have none, and no two rows or columns are
/// equal.
std::uint64_t pair_size(std::uint32_t from, std::uint32_t to, std::uint64_t unit) {
  return (from + 2 * to) % 3 == 0 ? 0 : unit * (1 + from) + to;
}

TEST_P(Parts, AllToAllMovesPartsOfAnySizes) {
  const std::uint32_t size = GetParam();
  for (const std::uint64_t unit : {0UL, 1UL, 9'000UL}) {
    std::vector<reference::Bytes> given;
    std::vector<reference::Bytes> got;
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

}  // namespace
}  // namespace gtopk
