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
    candidates_ =
        rule.kind == SelectionRule::Kind::kExact && workspace.exact.candidates.capacity != 0
            ? workspace.exact.refine.key.cutoff->candidates
            : 0;
  }

  std::uint64_t reads_ = 0;
  std::uint64_t candidates_ = 0;
  device::Report report_;
};

constexpr std::uint64_t kK = 600;

// Threads load an element twice where a tile ends (each_loaded()), hence kTile.
TEST_F(Reads, OfAnExactSelectionAreOneOfEachElementAndTwoOfASample) {
  constexpr std::uint64_t kD = 600'000;
  ASSERT_NO_FATAL_FAILURE(select("exact", kD, kK));
  const auto guess = device::Guess::of(kD, kK, 2 * kK + 32'768);
  const std::uint64_t expected = kD + 2 * guess.size + candidates_;  // which are read to be copied
  EXPECT_GE(candidates_, kK);
  EXPECT_GE(reads_, expected);
  EXPECT_LE(reads_, expected + device::kTile);
}

// An exact one without candidates reads acc for each of three digits. `gaussian` reads it for its
// sums and `sampled` a part of it, then all do once for each threshold that they try. Two more are
// to write.
TEST_F(Reads, OfOtherSelectionsAreFew) {
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
  EXPECT_NEAR(reads_of("sampled"), 5 + 2, 0.3) << "five thresholds, as the sample is small";
}

}  // namespace
}  // namespace gtopk::sparse
