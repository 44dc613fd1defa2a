// How often a selection reads acc, which takes most of its time where vectors are long: counted
// with a type of element that counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/gtopk/device/select.hpp"
#include "src/gtopk/device/selection.hpp"
#include "src/gtopk/select/selector.hpp"
#include "tests/gtopk/device/pieces_of.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using testing::DeviceMemory;
using testing::HostExecutor;

struct Counted {
  float value;
  std::uint64_t* reads;
};
/// What each reading of acc calls (accumulate_one() in numbers/accumulation.hpp).
float widen(Counted counted) {
  ++*counted.reads;
  return counted.value;
}

class Reads : public ::testing::Test {
 protected:
  /// Of a selection of k from d normally distributed elements.
  void select(const std::string& selector, std::uint64_t d, std::uint64_t k) {
    std::mt19937_64 random(d);
    std::normal_distribution<float> normal;
    std::vector<Counted> tensor(d);
    std::ranges::generate(tensor, [&] { return Counted{normal(random), &reads_}; });
    select_from(tensor, selector, k);
  }

  void select_from(std::vector<Counted>& tensor, const std::string& selector, std::uint64_t k) {
    const std::uint64_t d = tensor.size();
    SparseOptions options;
    options.selector = selector;
    options.density = static_cast<double>(k) / static_cast<double>(d);
    SelectorState state{{2.575}};  // which one of a hundred reaches
    options.state = &state;
    const SelectorRow& row = selector_registry().find(selector);
    const auto rule =
        row.on_device(d, row.per_block ? selection_size(d, options.density, options.block) : k,
                      options)
            .value();
    device::Piece<Counted> piece{.tensor = tensor.data(), .size = d};
    const device::Pieces<Counted> acc{&piece, 1, device::number_tiles(&piece, 1)};
    const auto take = [&](device::Arena& arena) {
      return device::RuleWorkspace<float>::in(arena, acc.tiles, d, rule);
    };
    DeviceMemory memory(take);
    device::Arena arena = memory.arena();
    const auto workspace = take(arena);
    std::vector<device::Index> indices(rule.most);
    std::vector<float> values(rule.most);
    SelectorState next;
    HostExecutor executor(d, 3);
    device::select_by<Counted>(rule, executor, acc, d, workspace, {indices.data(), values.data()},
                               &report_, state.numbers.data(), next.numbers.data());
    ASSERT_EQ(report_.finite, 1U);
    ASSERT_GT(report_.kept, k / 2);
    if (rule.kind == SelectionRule::Kind::kBlocks) {
      return;
    }
    const bool exact = rule.kind == SelectionRule::Kind::kExact;
    const auto& selection = exact ? workspace.exact : workspace.search.selection;
    route_ = selection.refine.key.cutoff->route;
    candidates_ = selection.refine.key.cutoff->candidates;
    const auto guess = device::guess_of(d, rule.most, selection);
    sampled_ = 2 * guess.size + (rule.stride == 0 ? 0 : 3 * (d / rule.stride));
  }

  std::uint64_t reads_ = 0;
  device::Route route_ = device::Route::kNowhere;
  std::uint64_t candidates_ = 0;
  std::uint64_t sampled_ = 0;  ///< how many elements were read as part of a sample
  device::Report report_;
};

constexpr std::uint64_t kK = 600;

// Threads load an element twice where a tile ends (each_loaded()), hence kTile. Candidates are read
// again to be copied.
TEST_F(Reads, OfManyElementsAreOneOfEachAndFewOfASample) {
  constexpr std::uint64_t kD = 600'000;
  for (const std::string selector : {"exact", "gaussian", "sampled", "threshold"}) {
    reads_ = 0;
    ASSERT_NO_FATAL_FAILURE(select(selector, kD, kD / 100));
    EXPECT_EQ(route_, device::Route::kCandidates) << selector;
    EXPECT_GE(candidates_, kD / 100) << selector;
    const std::uint64_t sums = selector == "gaussian" ? kD : 0;
    const std::uint64_t expected = kD + sums + sampled_ + candidates_;
    EXPECT_GE(reads_, expected) << selector;
    EXPECT_LE(reads_, expected + device::kTile) << selector;
  }
}

// All selections read acc again for each of three digits, and to count what they keep, which is in
// its first tile; the approximate ones count for all thresholds with the first digit.
TEST_F(Reads, OfManyEqualElementsAreFew) {
  constexpr std::uint64_t kD = 600'000;
  for (const std::string selector : {"exact", "gaussian", "sampled", "threshold"}) {
    std::vector<Counted> tensor(kD, {2.575F, &reads_});
    reads_ = 0;
    ASSERT_NO_FATAL_FAILURE(select_from(tensor, selector, kK));
    EXPECT_EQ(route_, device::Route::kAll) << selector;
    const int sums = selector == "gaussian" ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(reads_ - sampled_) / kD, 1 + sums + 3 + 1, 0.1) << selector;
  }
}

// Without candidates. An exact selection reads acc for each of three digits, the others for their
// sums or a part of it, and to count, with the first digit, what reaches each threshold. Two more
// are to write.
TEST_F(Reads, OfFewElementsAreFew) {
  constexpr std::uint64_t kD = 60'000;
  const auto reads_of = [&](const std::string& selector) {
    reads_ = 0;
    select(selector, kD, kK);
    return static_cast<double>(reads_) / kD;
  };
  EXPECT_NEAR(reads_of("exact"), 3 + 2, 0.2);
  EXPECT_NEAR(reads_of("gaussian"), 1 + 1 + 2, 0.2);
  EXPECT_NEAR(reads_of("threshold"), 1 + 2, 0.2);
  EXPECT_NEAR(reads_of("block"), 4, 0.2) << "three digits, and one to write";
  EXPECT_NEAR(reads_of("sampled"), 1 + 2, 0.2);
}

}  // namespace
}  // namespace gtopk::sparse
