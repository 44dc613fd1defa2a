// Every kernel with real threads, two blocks at a time: what it writes are the bits that it writes
// while threads take turns, which other tests compare with the CPU's. ThreadSanitizer looks on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <typeindex>
#include <typeinfo>
#include <vector>

#include "src/cuda/typed_calls.hpp"
#include "tests/gtopk/device/pieces_of.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using testing::DeviceMemory;
using testing::HostExecutor;
using testing::InPieces;
using testing::ThreadsExecutor;
using Rule = SelectionRule::Kind;

constexpr std::uint64_t kBlocks = 3;
constexpr std::size_t kD = 2 * device::kTile + 77;
constexpr std::uint64_t kK = 90;

/// Notes in how many blocks at most each kernel ran.
template <class Executor>
class Noting {
 public:
  explicit Noting(Executor& executor) : executor_(executor) {}

  [[nodiscard]] std::uint64_t wide() const { return executor_.wide(); }
  [[nodiscard]] const std::map<std::type_index, std::uint64_t>& blocks_of() const { return most_; }

  template <class Kernel>
  void launch(std::uint64_t blocks, const Kernel& kernel) {
    std::uint64_t& most = most_[typeid(Kernel)];
    most = std::max(most, blocks);
    executor_.launch(blocks, kernel);
  }

 private:
  Executor& executor_;
  std::map<std::type_index, std::uint64_t> most_;
};

struct NoExecutor {
  [[nodiscard]] static std::uint64_t wide() { return 1; }
  template <class Kernel>
  void launch(std::uint64_t /*blocks*/, const Kernel& /*kernel*/) {}
};

/// Makes every call, and collects what they write.
template <class Executor>
class EveryCall {
 public:
  explicit EveryCall(Executor& executor) : executor_(executor) {
    for (std::size_t i = 0; i < kD; ++i) {  // with ties
      tensor_.push_back(static_cast<float>(static_cast<int>(random_() % 2'001) - 1'000) / 8);
      residual_.push_back(static_cast<float>(random_() % 3));
    }
  }

  [[nodiscard]] const std::vector<std::byte>& written() const { return written_; }

  /// `candidates`: the capacity for those of an approximate selection.
  void select(const SelectionRule& rule, std::uint64_t candidates = 0) {
    const InPieces<float> pieces(tensor_, residual_, true, random_);
    const auto take = [&](device::Arena& arena) {
      const std::uint64_t tiles = pieces.view().tiles;
      auto workspace = device::RuleWorkspace<float>::in(arena, tiles, kD, rule);
      if (candidates != 0) {
        workspace.search = device::SearchWorkspace<float>::in(arena, tiles, kD, rule, candidates);
      }
      return workspace;
    };
    DeviceMemory memory(take);
    device::Arena arena = memory.arena();
    Out out(rule.most);
    device::select_by<float>(rule, executor_, pieces.view(), kD, take(arena), out.entries(),
                             &out.report, state_.data(), state_.data() + 4);
    keep(out);
    keep(std::span(state_).subspan(4));
  }
  void select_among_candidates() {
    const InPieces<float> pieces(tensor_, residual_, true, random_);
    const auto take = [&](device::Arena& arena) {
      return device::SelectionWorkspace<float>::in(arena, pieces.view().tiles, 10 * kK);
    };
    DeviceMemory memory(take);
    device::Arena arena = memory.arena();
    const auto workspace = take(arena);
    Out out(kK);
    device::select<float>(executor_, pieces.view(), kD, kK, workspace, out.entries(), &out.report);
    const device::Route route = workspace.refine.key.cutoff->route;
    EXPECT_EQ(route, out.report.finite != 0 ? device::Route::kCandidates : device::Route::kNowhere);
    keep(out);
  }
  void sum_and_gather() {
    const InPieces<float> pieces(tensor_, residual_, true, random_);
    std::vector<float> sums(kD);
    executor_.launch(executor_.wide(), device::Accumulate<float>{pieces.view(), sums.data()});
    keep(std::span(sums));
    const std::vector<device::Index> indices{0, 1, device::kTile, kD - 1};
    std::vector<float> values(indices.size());
    std::uint64_t finite = 1;
    executor_.launch(executor_.wide(),
                     device::Gather<float>{pieces.view(), indices.data(), indices.size(),
                                           values.data(), &finite});
    keep(std::span(values));
    keep(std::span(&finite, 1));
  }
  void commit(bool happened) {
    const InPieces<float> pieces(tensor_, residual_, true, random_);
    std::vector<float> momentum(kD, 1);
    std::vector<device::Index> cleared{0, 5, device::kTile, kD - 1};
    std::vector<device::Index> returned{3, 3, 3, device::kTile + 1, device::kTile + 1};
    std::vector<float> values{1, 2, 4, 8, 16};
    const EditCounts counts{.happened = happened ? 1U : 0U,
                            .cleared = cleared.size(),
                            .returned = returned.size(),
                            .delivered = cleared.size()};
    const Edits<float, device::Index> edits{
        cleared.data(), {returned.data(), values.data()}, {cleared.data(), values.data()}};
    device::commit<float>(executor_, pieces.view(), momentum.data(), edits, &counts, 3);
    keep(std::span(momentum));
    keep_and_restore(pieces);
    executor_.launch(executor_.wide(), device::CommitWhole<float>{pieces.view(), momentum.data(),
                                                                  &counts.happened, 3});
    keep_and_restore(pieces);
  }
  void sketch() {
    constexpr std::uint64_t kColumns = 30;
    const auto hashes = SketchHashes::drawn_from(1, kColumns);
    const auto take = [&](device::Arena& arena) {
      return device::SketchWorkspace<float>::in(arena, hashes.cells(), kD, kK);
    };
    DeviceMemory memory(take);
    device::Arena arena = memory.arena();
    const auto workspace = take(arena);
    const InPieces<float> pieces(tensor_, residual_, true, random_);
    std::vector<float> cells(hashes.cells());
    device::sketch<float>(executor_, pieces.view(), kD, hashes, workspace, cells.data());
    keep(std::span(cells));
    Out out(kK);
    std::ranges::replace_if(cells, [](float cell) { return cell != cell; }, 1.0F);
    device::find_heaviest<float>(executor_, kD, hashes, cells.data(), kK, workspace, out.entries(),
                                 &out.report);
    keep(out);
  }
  void spoil() { tensor_[kD / 2] = tensor_[kD - 1] = std::numeric_limits<float>::infinity(); }

 private:
  struct Out {
    explicit Out(std::size_t most) : indices(most), values(most) {}
    [[nodiscard]] EntriesOut<float, device::Index> entries() {
      return {indices.data(), values.data()};
    }
    std::vector<device::Index> indices;
    std::vector<float> values;
    device::Report report;
  };

  template <class T, std::size_t Extent>
  void keep(std::span<T, Extent> numbers) {
    const auto bytes = std::as_bytes(numbers);
    written_.insert(written_.end(), bytes.begin(), bytes.end());
  }
  void keep(const Out& out) {
    keep(std::span(out.indices));
    keep(std::span(out.values));
    const std::uint64_t report[] = {out.report.kept, out.report.dropped, out.report.finite};
    keep(std::span(report));
  }
  void keep_and_restore(const InPieces<float>& pieces) {
    const auto tensor = pieces.joined();
    keep(std::span(tensor));
    keep(std::span(residual_));
    std::ranges::fill(residual_, 1.0F);
  }

  Executor& executor_;
  std::mt19937_64 random_{1};
  std::vector<float> tensor_;
  std::vector<float> residual_;
  std::vector<double> state_ = {123, 0, 0, 0, 0, 0, 0, 0};
  std::vector<std::byte> written_;
};

template <class Executor>
std::vector<std::byte> make_every_call(Executor& executor) {
  EveryCall calls(executor);
  const SelectionRule normal{.kind = Rule::kNormal, .k = kK, .most = 4 * kK, .quantile = 1.6};
  const SelectionRule blocks{
      .kind = Rule::kBlocks, .k = 5, .most = 100, .block = 500, .k_of_last = 3};
  calls.select({.kind = Rule::kExact, .k = kK, .most = kK});
  for (const std::uint64_t candidates : {std::uint64_t{0}, 10 * kK, kD}) {
    calls.select(normal, candidates);
    calls.select({.kind = Rule::kSample, .k = kK, .most = 2 * kK, .stride = 11, .rank = 8},
                 candidates);
    calls.select({.kind = Rule::kThreshold, .k = kK, .most = 2 * kK}, candidates);
  }
  calls.sketch();
  for (const bool spoiled : {false, true}) {
    if (spoiled) {
      calls.spoil();
    }
    calls.select(normal);
    calls.select(blocks);
    calls.select_among_candidates();
    calls.sum_and_gather();
    calls.commit(!spoiled);
  }
  return calls.written();
}

TEST(Threads, WriteWhatTheyWriteInTurn) {
  HostExecutor in_turn(1, kBlocks);
  ThreadsExecutor at_once(1, kBlocks);
  Noting noting(at_once);
  EXPECT_TRUE(make_every_call(noting) == make_every_call(in_turn));
  NoExecutor none;
  Noting all(none);
  cuda::launch_all_of_type<float>(all);
  cuda::launch_all_of_values<float>(all);
  for (const auto& [kernel, blocks] : all.blocks_of()) {
    EXPECT_TRUE(noting.blocks_of().contains(kernel)) << kernel.name() << " did not run";
  }
}

}  // namespace
}  // namespace gtopk::sparse
