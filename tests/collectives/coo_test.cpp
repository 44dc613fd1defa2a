// Collectives: the sum of sparse tensors in coordinate format, against its definition: at each
// place that any rank has, the ranks' rows added in rank order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "gtopk/collectives.hpp"
#include "src/collectives/reduction.hpp"
#include "tests/collectives/definitions.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::SharedEnding;

/// A rank's part of a sparse tensor, and where its sum goes.
struct Part {
  std::vector<std::uint64_t> places;
  reference::Bytes values;
  CooSum sum{{99}, {}};

  [[nodiscard]] Collective call(const CooShape& shape) {
    return coo_all_reduce({places, values.data()}, shape, sum);
  }
};

/// Up to `most` entries at `places` possible places.
Part drawn(reference::Random& random, const CooShape& shape, std::uint64_t places,
           std::uint64_t most) {
  Part part;
  const std::uint64_t wanted = most == 0 ? 0 : random.below(most + 1);
  for (std::uint64_t place = 0; place < places && part.places.size() < wanted; ++place) {
    if (random.below(places) < 2 * wanted) {
      part.places.push_back(place);
    }
  }
  part.values = test::random_elements(random, part.places.size() * shape.row(), shape.dtype);
  return part;
}

CooSum defined(const std::vector<Part>& parts, const CooShape& shape) {
  const std::size_t bytes = shape.row() * size_of(shape.dtype);
  std::map<std::uint64_t, reference::Bytes> rows;
  for (const Part& part : parts) {
    for (std::size_t entry = 0; entry < part.places.size(); ++entry) {
      const auto* const first = part.values.data() + entry * bytes;
      const auto [row, fresh] = rows.try_emplace(part.places[entry], first, first + bytes);
      if (fresh || bytes == 0) {
        continue;
      }
      collectives::reduce(row->second.data(), row->second.data(), first, shape.row(), shape.dtype,
                          ReduceOp::kSum);
    }
  }
  CooSum sum;
  for (const auto& [place, row] : rows) {
    sum.places.push_back(place);
    sum.values.insert(sum.values.end(), row.begin(), row.end());
  }
  return sum;
}

/// Runs it on `size` ranks and compares each result with the definition, bit for bit.
void expect_defined_sum(std::uint32_t size, const CooShape& shape, std::uint64_t places,
                        std::uint64_t most, std::uint64_t seed) {
  SCOPED_TRACE(fmt::format("P={} rows of {} {}, up to {} of {} entries, seed {}", size, shape.row(),
                           to_string(shape.dtype), most, places, seed));
  reference::Random random(seed);
  std::vector<Part> parts;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    parts.push_back(drawn(random, shape, places, most));
  }
  const std::vector<Part> before = parts;
  InprocRanks ranks(size, support::network(seed, std::chrono::microseconds(20)));
  for (const SharedEnding& ending :
       ranks.run([&](std::uint32_t rank) { return parts[rank].call(shape); })) {
    ASSERT_TRUE(ending->good()) << ending->text();
  }
  const CooSum expected = defined(before, shape);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    ASSERT_EQ(parts[rank].sum.places, expected.places) << "rank " << rank;
    ASSERT_EQ(parts[rank].sum.values, expected.values) << "rank " << rank;
    ASSERT_EQ(parts[rank].values, before[rank].values) << "rank " << rank;
  }
  EXPECT_TRUE(ranks.close().empty());
}

CooShape shape(DataType type, std::uint64_t row) {
  return {.sizes = {1000, row}, .sparse_dimensions = 1, .dtype = type};
}

TEST(CooAllReduce, IsTheDefinedSumForEveryTypeAndNumberOfRanks) {
  constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kInt64,
                                 DataType::kBool, DataType::kComplex64};
  std::uint64_t seed = 0;
  for (const std::uint32_t size : {1U, 2U, 3U, 4U, 5U, 8U}) {
    for (const DataType type : kTypes) {
      expect_defined_sum(size, shape(type, 1 + seed % 4), 1000, 300, seed);
      ++seed;
      if (HasFailure()) {
        return;
      }
    }
  }
}

TEST(CooAllReduce, OfNothingOfFewEntriesAndOfEmptyRowsIsDefinedToo) {
  for (const std::uint32_t size : {1U, 3U}) {
    expect_defined_sum(size, shape(DataType::kFloat32, 4), 1000, 0, 1);
    expect_defined_sum(size, shape(DataType::kFloat32, 4), 10, 1, 2);
    expect_defined_sum(size, shape(DataType::kFloat32, 0), 1000, 100, 3);
  }
}

TEST(CooAllReduce, MoreEntriesThanEngineSumsItself_EqualDefinedSum) {
  expect_defined_sum(3, shape(DataType::kFloat32, 64), 2000, 1500, 4);
}

TEST(CooAllReduce, RanksWithOtherShapesHearOfBoth) {
  const CooShape usual{{1000, 4}, 1, DataType::kFloat32};
  const std::vector<std::pair<CooShape, std::string>> others = {
      {{{1001, 4}, 1, DataType::kFloat32}, "sizes=[1001, 4]"},
      {{{1000, 4}, 2, DataType::kFloat32}, "sparse_dim=2"},
      {{{1000, 4}, 1, DataType::kFloat64}, "dtype=float64"},
      {{{1000, 4, 4}, 1, DataType::kFloat32}, "dimensions=3"},
  };
  for (const auto& [other, words] : others) {
    InprocRanks ranks(4);
    std::vector<Part> parts(4);
    for (const SharedEnding& ending : ranks.run(
             [&](std::uint32_t rank) { return parts[rank].call(rank == 2 ? other : usual); })) {
      ASSERT_TRUE(ending->error.has_value());
      EXPECT_EQ(ending->error->kind(), ErrorKind::kMismatch) << ending->text();
      EXPECT_THAT(ending->text(), ::testing::HasSubstr(words));
      EXPECT_THAT(ending->text(), ::testing::HasSubstr("dimensions=2, sizes=[1000, 4], "
                                                       "sparse_dim=1, dtype=float32"));
    }
    for (const Part& part : parts) {
      EXPECT_EQ(part.sum.places, std::vector<std::uint64_t>{99});
    }
    EXPECT_EQ(support::group_works(ranks), "");
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(CooAllReduce, RefusesWhatNoRankMayCall) {
  Part part;
  const auto refusal = [&](const CooShape& of) -> std::optional<ErrorKind> {
    try {
      static_cast<void>(part.call(of));
    } catch (const Error& error) {
      return error.kind();
    }
    return std::nullopt;
  };
  constexpr std::uint64_t kHuge = 1ULL << 32U;
  EXPECT_EQ(refusal({{kHuge, kHuge}, 2, DataType::kFloat32}), ErrorKind::kUnsupported);
  EXPECT_EQ(refusal({{kHuge, 2}, 2, DataType::kFloat32}), std::nullopt);
  EXPECT_EQ(refusal({{4}, 2, DataType::kFloat32}), ErrorKind::kInvalidArgument);
}

}  // namespace
}  // namespace gtopk
