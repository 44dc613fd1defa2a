// The kernels of a selection, on the CPU: the same bits as the CPU's own selection, whatever the
// order of threads and blocks, and whatever the capacity for candidates.
#include "src/gtopk/device/select.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/gtopk/device/pieces_of.hpp"
#include "tests/gtopk/device/select_cases.hpp"
#include "tests/gtopk/value/all_types.hpp"
#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using testing::DeviceMemory;
using testing::HostExecutor;
using testing::InPieces;
using testing::Kind;

template <class Param>
class DeviceSelect : public ::testing::Test {
 protected:
  using T = typename Param::T;
  using Index = typename Param::Index;
  using Value = Accumulation<T>;

  using Case = testing::SelectCase<T>;

  struct Outcome {
    device::Report report;
    testing::List<Value, Index> list;
    device::Route route = device::Route::kNowhere;
  };

  /// `candidates`: the capacity for candidates; 0: none are looked for.
  static Outcome select(Case one, std::uint64_t candidates, std::mt19937_64& random) {
    const InPieces<T> pieces(one.gradient, one.residual, one.cut, random, one.begin);
    const std::size_t d = one.gradient.size();
    const auto take = [&](device::Arena& arena) {
      return device::SelectionWorkspace<Value>::in(arena, pieces.view().tiles, candidates);
    };
    DeviceMemory memory(take);
    device::Arena arena = memory.arena();
    const auto workspace = take(arena);
    HostExecutor executor(random(), 1 + random() % 4);
    Outcome outcome;
    device::select<T>(executor, pieces.view(), d, one.k, workspace, outcome.list.out(one.most()),
                      &outcome.report);
    outcome.list.shrink(outcome.report.kept);
    outcome.route = workspace.refine.key.cutoff->route;
    return outcome;
  }

  static void expect_as_on_the_cpu(const Case& one, const Outcome& seen) {
    const auto expected = testing::selected_on_the_cpu<Index>(one);
    EXPECT_EQ(seen.report.finite != 0, expected.finite);
    EXPECT_EQ(seen.report.kept, expected.list.indices.size());
    EXPECT_TRUE(testing::same_bits(seen.list, expected.list));
  }
};

TYPED_TEST_SUITE(DeviceSelect, testing::NarrowTypes);

TYPED_TEST(DeviceSelect, GivesWhatTheCpuGivesOnAnyData) {
  testing::for_each_seed(60, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Case::random(random, 3 * device::kTile);
    const std::uint64_t d = one.d();
    for (const std::uint64_t candidates : {std::uint64_t{0}, d, 1 + random() % (d + 1)}) {
      TestFixture::expect_as_on_the_cpu(one, TestFixture::select(one, candidates, random));
    }
  });
}

TYPED_TEST(DeviceSelect, FindsWhatIsNotFiniteWithAnyCapacityAndAnyK) {
  testing::for_each_seed(30, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Case::random_spoiled(random, 2 * device::kTile);
    const std::uint64_t d = one.d();
    for (const std::uint64_t candidates : {std::uint64_t{0}, d, 1 + random() % d}) {
      const auto seen = TestFixture::select(one, candidates, random);
      EXPECT_EQ(seen.report.finite, 0U);
      EXPECT_EQ(seen.report.kept, 0U);
      TestFixture::expect_as_on_the_cpu(one, seen);
    }
  });
}

// What is not sent waits in the residual, so most of it is soon just below the threshold.
TYPED_TEST(DeviceSelect, ReadsAccOnceHoweverMuchIsJustBelowTheThreshold) {
  using T = typename TestFixture::T;
  using Value = typename TestFixture::Value;
  std::mt19937_64 random(5);
  typename TestFixture::Case one;
  constexpr std::size_t kSize = 10 * device::kTile + 77;
  one.k = 200;
  one.residual.assign(kSize, 0);
  for (int step = 0; step < 12; ++step) {
    one.gradient = testing::random_values<T>(Kind::kGaussian, kSize, random);
    const auto seen = TestFixture::select(one, 3 * one.k, random);
    ASSERT_EQ(seen.route, device::Route::kCandidates) << "step " << step;
    TestFixture::expect_as_on_the_cpu(one, seen);
    for (std::size_t i = 0; i < kSize; ++i) {
      one.residual[i] = accumulate_one(one.gradient[i], one.residual[i]);
    }
    for (const auto index : seen.list.indices) {
      one.residual[index] = Value{0};
    }
  }
}

TYPED_TEST(DeviceSelect, ReadsAccAgainWhereThereAreTooManyCandidates) {
  using T = typename TestFixture::T;
  std::mt19937_64 random(6);
  typename TestFixture::Case one;
  one.gradient = testing::random_values<T>(Kind::kAllEqual, 5 * device::kTile, random);
  one.k = 200;
  const auto seen = TestFixture::select(one, 3 * one.k, random);
  EXPECT_EQ(seen.route, device::Route::kAll);
  TestFixture::expect_as_on_the_cpu(one, seen);
}

TYPED_TEST(DeviceSelect, NumbersElementsBehindWhatThirtyOneBitsCount) {
  testing::for_each_seed(8, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto one = TestFixture::Case::random(random, 3 * device::kTile);
    one.begin = (std::uint64_t{1} << 31U) - 5;
    TestFixture::expect_as_on_the_cpu(one, TestFixture::select(one, 0, random));
  });
}

TEST(SelectionWorkspaces, HaveCandidatesForLargeVectorsOnly) {
  using Workspace = device::SelectionWorkspace<float>;
  EXPECT_EQ(Workspace::candidates_of(1U << 19U, 100), 0U);
  EXPECT_EQ(Workspace::candidates_of((1U << 19U) + 1, 100), 200U + 32'768);
  EXPECT_EQ(Workspace::candidates_of(1'000'000, 499'999), 1'000'000U);
  EXPECT_EQ(Workspace::candidates_of(1'000'000, 0), 0U);
  EXPECT_EQ(Workspace::candidates_of(1'000'000, 500'000), 0U) << "most would be candidates";
}

TEST(Guesses, AreBetweenKAndTheCapacity) {
  for (const std::uint64_t d : {600'000ULL, 25'557'032ULL, 335'000'000ULL, 1ULL << 40U}) {
    for (const double density : {1e-5, 0.001, 0.01, 0.3}) {
      const auto k = static_cast<std::uint64_t>(density * static_cast<double>(d));
      const std::uint64_t capacity = device::SelectionWorkspace<float>::candidates_of(d, k);
      const auto guess = device::Guess::of(d, k, capacity);
      EXPECT_EQ(guess.stride % 2, 1U);
      EXPECT_EQ(guess.size, (d + guess.stride - 1) / guess.stride);
      const double reached = static_cast<double>(guess.rank) * static_cast<double>(d) /
                             static_cast<double>(guess.size);
      EXPECT_GT(reached, 1.05 * static_cast<double>(k));
      EXPECT_LT(reached, static_cast<double>(capacity));
    }
  }
}

// A vector of which only the pages that are written exist.
TEST(DeviceSelectOfALongVector, TilesBeyondTwoToThe31_AreFound) {
  constexpr std::uint64_t kElements = std::numeric_limits<device::Index>::max();
  constexpr std::size_t kBytes = kElements * sizeof(Float16);
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    GTEST_SKIP() << "8 GiB of addresses are not to be had";
  }
  auto* const tensor = static_cast<Float16*>(memory);
  const std::uint64_t places[] = {(std::uint64_t{1} << 31U) + 1,
                                  kElements - std::uint64_t{3} * device::kTile, kElements - 9,
                                  kElements - 1};
  for (const std::uint64_t place : places) {
    tensor[place] = to_float16(3);
  }
  device::Piece<Float16> piece;
  piece.tensor = tensor;
  piece.size = kElements;
  const std::uint64_t tiles = device::number_tiles(&piece, 1);
  ASSERT_EQ(tiles, kElements / device::kTile + 1);
  device::Cutoff<float> cutoff{.left = 10, .reached = 1};
  const device::Pieces<Float16> acc{&piece, 1, tiles};
  std::vector<float> values(10);
  std::vector<std::uint16_t> offsets(10);
  std::vector<std::uint32_t> first(tiles);
  std::vector<std::uint32_t> counts(tiles);
  std::vector<std::uint32_t> before(tiles + 1);
  std::vector<float> ordered(10);
  std::vector<device::Index> indices(10);
  const device::Candidates<float> found{.capacity = values.size(),
                                        .values = values.data(),
                                        .offsets = offsets.data(),
                                        .first = first.data(),
                                        .of_tile = counts.data(),
                                        .before_run = before.data(),
                                        .ordered = ordered.data(),
                                        .indices = indices.data()};
  std::vector<std::uint64_t> blocks;  // one for each tile
  for (const std::uint64_t place : places) {
    if (blocks.empty() || blocks.back() != place / device::kTile) {
      blocks.push_back(place / device::kTile);
    }
  }
  HostExecutor executor(1, 1);
  executor.launch_some(tiles, blocks, device::SweepCandidates<Float16>{acc, &cutoff, found});
  ASSERT_EQ(cutoff.candidates, std::size(places));
  executor.launch(1, device::ChooseRoute<float>{&cutoff, found, tiles});
  ASSERT_EQ(cutoff.route, device::Route::kCandidates);
  executor.launch_some(tiles, blocks, device::OrderCandidates<Float16>{acc, &cutoff, found});
  std::vector<std::uint64_t> seen;
  device::SelectionSource<Float16>{{acc}, found, &cutoff}.with_source([&](const auto& source) {
    ASSERT_EQ(source.tiles(), 1U);
    const auto view = source.open(0);
    for (unsigned i = 0; i < view.size; ++i) {
      seen.push_back(view.index(i));
      EXPECT_EQ(view.value(i), 3.0F);
    }
  });
  EXPECT_EQ(seen, std::vector<std::uint64_t>(std::begin(places), std::end(places)));
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace gtopk::sparse
