// The kernels of the approximate selections and of blocks, on the CPU, where a vector is as long
// as may be, 2^32 - 1 elements, and grids larger than some dimensions of a GPU's may be. Of the
// long vector only the pages that are written exist, and of its grid only the blocks that meet them
// run.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "src/gtopk/device/selection.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using testing::HostExecutor;

constexpr std::uint64_t kElements = std::numeric_limits<device::Index>::max();

/// Zeros, but for 3 at some places.
class LongVector : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = kElements * sizeof(Float16);

  void SetUp() override {
    memory_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) {
      GTEST_SKIP() << "8 GiB of addresses are not to be had";
    }
    piece_.tensor = static_cast<Float16*>(memory_);
    piece_.size = kElements;
    acc_ = {&piece_, 1, device::number_tiles(&piece_, 1)};
    for (const std::uint64_t place : places_) {
      piece_.tensor[place] = to_float16(3);
    }
  }
  void TearDown() override {
    if (memory_ != MAP_FAILED) {
      munmap(memory_, kBytes);
    }
  }

  /// The blocks of a grid, one for each `size` elements, that meet the places.
  [[nodiscard]] std::vector<std::uint64_t> meeting(std::uint64_t size) const {
    std::vector<std::uint64_t> blocks;
    for (const std::uint64_t place : places_) {
      if (blocks.empty() || blocks.back() != place / size) {
        blocks.push_back(place / size);
      }
    }
    return blocks;
  }

  const std::vector<device::Index> places_ = {(1U << 31U) - 1, (1U << 31U) + 1,
                                              kElements - std::uint64_t{3} * device::kTile,
                                              kElements - 5000, kElements - 1};
  void* memory_ = MAP_FAILED;
  device::Piece<Float16> piece_;
  device::Pieces<Float16> acc_;
  HostExecutor executor_{1, 1};
};

TEST_F(LongVector, IsCountedBehindTwoToTheThirtyOneElements) {
  using Source = device::AccSource<Float16>;
  using By = device::ByThresholds<float>;
  std::uint32_t keys[] = {key_reaching<float>(2), key_reaching<float>(3), key_reaching<float>(4),
                          ~0U};
  device::Cutoff<float> cutoff{.searching = 1};
  std::vector<std::uint64_t> bins(device::kAllBins);
  executor_.launch_some(
      acc_.tiles, meeting(device::kTile),
      device::Histogram<Source, float, By>{{acc_}, &cutoff, bins.data(), {{keys, 4}}});
  EXPECT_EQ(bins[device::kBins + 2], places_.size());
  EXPECT_EQ(std::accumulate(bins.begin() + device::kBins, bins.end(), std::uint64_t{0}),
            places_.size());
  EXPECT_EQ(cutoff.finite, 1U);
}

TEST_F(LongVector, IsSummedUpBehindTwoToTheThirtyOneElements) {
  constexpr std::uint64_t kTogether = device::SumChunks<Float16>::kTogether;
  const std::uint64_t chunks = device::SumChunks<Float16>::chunks_of(kElements);
  ASSERT_EQ(chunks, std::uint64_t{1} << 20U);
  std::vector<double> sums(chunks);
  std::vector<double> squares(chunks);
  executor_.launch_some((chunks + kTogether - 1) / kTogether, meeting(kMomentsChunk * kTogether),
                        device::SumChunks<Float16>{acc_, kElements, sums.data(), squares.data()});
  std::vector<double> expected(chunks);
  for (const std::uint64_t place : places_) {
    expected[place / kMomentsChunk] += 3;
  }
  EXPECT_EQ(sums, expected);
  std::ranges::transform(expected, expected.begin(), [](double sum) { return 3 * sum; });
  EXPECT_EQ(squares, expected);
}

TEST_F(LongVector, IsSampledBehindTwoToTheThirtyOneElements) {
  const std::uint64_t stride = 101;
  const std::uint64_t sample = (kElements + stride - 1) / stride;
  const device::SampleSource<Float16> source{acc_, stride, sample};
  const std::uint64_t last = sample - 1;
  piece_.tensor[last * stride] = to_float16(5);
  const auto view = source.open_loose(source.loose_tiles() - 1);
  ASSERT_GT(last * stride, std::uint64_t{1} << 31U);
  EXPECT_EQ(view.value(view.size - 1), 5.0F);
}

TEST_F(LongVector, IsCutIntoBlocksBehindTwoToTheThirtyOneElements) {
  constexpr std::uint64_t kBlock = 5000;
  const device::BlockGrid grid{kElements, kBlock, 2, 1};
  ASSERT_EQ(grid.count(), kElements / kBlock + 1);
  device::Arena measured(nullptr);
  (void)device::BlockCuts<float>::in(measured, grid.count());
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(measured.taken());
  device::Arena arena(memory.get());
  auto cuts = device::BlockCuts<float>::in(arena, grid.count());
  std::vector<device::BlockCounts> before_run(grid.count() + 1);  // a run for each
  cuts.before_run = before_run.data();
  *cuts.finite = 1;
  const std::vector<std::uint64_t> blocks = meeting(kBlock);
  executor_.launch_some(grid.count(), blocks, device::CutBlocks<Float16>{acc_, grid, cuts});
  std::uint64_t before = 0;
  for (const std::uint64_t block : blocks) {
    const std::uint64_t here = before_run[block].kept;
    ASSERT_EQ(here, cuts.kept[block]);
    before_run[block].kept = before;
    before += here;
  }
  ASSERT_EQ(before, places_.size());
  std::vector<device::Index> indices(places_.size());
  std::vector<float> values(places_.size());
  executor_.launch_some(
      grid.count(), blocks,
      device::WriteBlocks<Float16>{acc_, grid, cuts, {indices.data(), values.data()}});
  EXPECT_EQ(indices, places_);
  EXPECT_EQ(values, std::vector<float>(places_.size(), 3));
}

// More blocks of threads than any launch takes, and more blocks of elements than runs of them.
TEST(LargeGrids, SelectLikeSmallOnes) {
  constexpr std::size_t kSize = std::size_t{3} * device::kMostRuns * 64;
  std::vector<float> tensor(kSize);
  for (std::size_t i = 0; i < kSize; ++i) {
    tensor[i] = static_cast<float>(i % 1009) - 500;
  }
  device::Piece<float> piece{.tensor = tensor.data(), .size = kSize};
  const device::Pieces<float> acc{&piece, 1, device::number_tiles(&piece, 1)};
  const SelectionRule rule{
      .kind = SelectionRule::Kind::kBlocks, .k = 3, .most = 9 * device::kMostRuns, .block = 64};
  const auto select = [&](std::uint64_t wide) {
    device::Arena measured(nullptr);
    (void)device::RuleWorkspace<float>::in(measured, acc.tiles, kSize, rule);
    const auto memory = std::make_unique_for_overwrite<std::byte[]>(measured.taken());
    device::Arena arena(memory.get());
    const auto workspace = device::RuleWorkspace<float>::in(arena, acc.tiles, kSize, rule);
    std::vector<std::uint32_t> indices(rule.most);
    std::vector<float> values(rule.most);
    device::Report report;
    HostExecutor executor(7, wide);
    device::select_by<float>(rule, executor, acc, kSize, workspace, {indices.data(), values.data()},
                             &report);
    EXPECT_EQ(report.kept, rule.most);
    return indices;
  };
  EXPECT_EQ(select(70'000), select(1));
}

}  // namespace
}  // namespace gtopk::sparse
