// The selections of the kernels' library, on the GPU: the CPU's bits, for each kind of rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "src/gtopk/value/selection_order.hpp"
#include "tests/cuda/kernels_acc.hpp"
#include "tests/gtopk/device/select_cases.hpp"
#include "tests/gtopk/device/selection_cases.hpp"
#include "tests/gtopk/value/seeds.hpp"

namespace gtopk::sparse {
namespace {

using testing::Array;
using testing::ListThere;
using testing::One;
using testing::Place;
using testing::scaled;
using testing::SelectCase;
using testing::VectorThere;

using SelectionKind = SelectionRule::Kind;

template <class Value, class Index>
struct SelectedThere {
  SelectionReport report;
  testing::List<Value, Index> list;
  SelectorState next;
};

template <class Index, class T>
[[nodiscard]] SelectedThere<Accumulation<T>, Index> select_there(const VectorThere<T>& acc,
                                                                 const SelectionRule& rule,
                                                                 std::mt19937_64& random,
                                                                 const SelectorState& state = {}) {
  const Array<std::byte> workspace(
      Place::kDevice, testing::Gpu::get().calls().select_workspace_bytes(acc.view(), rule));
  const ListThere<Accumulation<T>, Index> kept(testing::either(random), rule.most);
  const One<SelectionReport> report(Place::kPinned, {});
  const One<SelectorState> before(Place::kPinned, state);
  const One<SelectorState> next(Place::kPinned, {});
  cuda::SelectCall call;
  call.acc = acc.view();
  call.rule = rule;
  call.workspace = workspace.data();
  call.kept = kept.of();
  call.report = report.data();
  call.state = before.data()->numbers.data();
  call.next = next.data()->numbers.data();
  testing::run(&cuda::Calls::select, call);
  SelectedThere<Accumulation<T>, Index> selected;
  selected.report = report.value();
  EXPECT_LE(selected.report.kept, rule.most);
  selected.list = kept.read(std::min(selected.report.kept, rule.most));
  selected.next = next.value();
  return selected;
}

template <class Param>
class KernelsSelect : public RuledSelectors<Param> {
 protected:
  using Base = RuledSelectors<Param>;
  using typename Base::Case;
  using typename Base::Index;
  using typename Base::Outcome;
  using typename Base::T;
  using typename Base::Value;
  using Exact = SelectCase<T>;

  static void expect_exact_as_on_the_cpu(const Exact& one, std::mt19937_64& random) {
    const VectorThere<T> acc(one.gradient, one.residual, one.cut, random, one.begin);
    const SelectionRule rule{.kind = SelectionKind::kExact, .k = one.k, .most = one.most()};
    const auto expected = testing::selected_on_the_cpu<Index>(one);
    const auto seen = select_there<Index>(acc, rule, random);
    EXPECT_EQ(seen.report.finite != 0, expected.finite);
    EXPECT_TRUE(testing::same_bits(seen.list, expected.list));
  }

  static Outcome on_the_gpu(const Case& one, const SelectionRule& rule, std::mt19937_64& random,
                            std::uint64_t begin = 0) {
    const VectorThere<T> acc(one.gradient, one.residual, random() % 2 == 0, random, begin);
    auto seen = select_there<Index>(acc, rule, random, one.state);
    Outcome outcome;
    outcome.selection.count = seen.report.kept;
    outcome.selection.finite = seen.report.finite != 0;
    outcome.selection.next = seen.next;
    outcome.list = std::move(seen.list);
    return outcome;
  }

  void expect_as_on_the_cpu(const Case& one, const SelectionRule& rule, std::mt19937_64& random,
                            std::uint64_t begin = 0) {
    const Outcome expected = this->expected(one, rule, begin);
    Base::expect_same(on_the_gpu(one, rule, random, begin), expected, one, rule);
  }
};

TYPED_TEST_SUITE(KernelsSelect, testing::NarrowTypes);

TYPED_TEST(KernelsSelect, SelectTheFirstKOfAnyData) {
  testing::for_each_seed(scaled(48), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Exact::random(random, 3 * device::kTile);
    TestFixture::expect_exact_as_on_the_cpu(one, random);
  });
}

// More elements than those of which candidates are looked for first (device/select.hpp).
TYPED_TEST(KernelsSelect, SelectTheFirstKOfManyElements) {
  using Case = typename TestFixture::Exact;
  testing::for_each_seed(scaled(10), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t d = (std::size_t{1} << 19U) + 1 + random() % 5000;
    Case one;
    one.gradient = testing::random_values<typename TestFixture::T>(
        seed % 2 == 0 ? testing::Kind::kGaussian : testing::random_kind(random), d, random);
    if (random() % 2 == 0) {
      one.residual = testing::random_values<typename TestFixture::Value>(
          testing::random_kind(random), d, random);
    }
    const std::size_t counts[] = {0, 1, 525, d / 10, d};
    one.k = counts[seed / 2 % 5];
    one.cut = random() % 2 == 0;
    TestFixture::expect_exact_as_on_the_cpu(one, random);
    one.gradient[random() % d] = narrow<typename TestFixture::T>(
        std::numeric_limits<typename TestFixture::Value>::infinity());
    TestFixture::expect_exact_as_on_the_cpu(one, random);
  });
}

TYPED_TEST(KernelsSelect, SelectNoneOneAllAndNoMoreThanThereAre) {
  using T = typename TestFixture::T;
  testing::for_each_seed(scaled(40), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const std::size_t lengths[] = {1, 2, device::kTile - 1, device::kTile, device::kTile + 1};
    const std::size_t d = lengths[seed % 5];
    const std::size_t counts[] = {0, 1, d, d + 3};
    typename TestFixture::Exact one;
    one.gradient = testing::random_values<T>(
        seed / 20 % 2 == 0 ? testing::Kind::kTies : testing::Kind::kAllEqual, d, random);
    one.k = counts[seed / 5 % 4];
    one.cut = random() % 2 == 0;
    TestFixture::expect_exact_as_on_the_cpu(one, random);
  });
}

TYPED_TEST(KernelsSelect, FindWhatIsNotFinite) {
  testing::for_each_seed(scaled(16), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Exact::random_spoiled(random, 2 * device::kTile);
    ASSERT_FALSE(testing::selected_on_the_cpu<typename TestFixture::Index>(one).finite);
    TestFixture::expect_exact_as_on_the_cpu(one, random);
  });
}

TYPED_TEST(KernelsSelect, NumberElementsBehindWhatThirtyTwoBitsCount) {
  testing::for_each_seed(scaled(8), [this](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto exact = TestFixture::Exact::random(random, 3 * device::kTile);
    exact.begin = TestFixture::kFarBegin;
    TestFixture::expect_exact_as_on_the_cpu(exact, random);
    this->for_each_selector([&](const std::string& selector) {
      const auto one = this->random_case(seed, selector, 2 * device::kTile);
      this->expect_as_on_the_cpu(one, TestFixture::rule_of(one).value(), random,
                                 TestFixture::kFarBegin);
    });
  });
}

TYPED_TEST(KernelsSelect, GiveWhatEachSelectorGivesOnAnyData) {
  this->for_each_selector([&](const std::string& selector) {
    testing::for_each_seed(scaled(24), [&](std::uint64_t seed) {
      const auto one = this->random_case(seed, selector, 3 * device::kTile);
      std::mt19937_64 random(seed);
      this->expect_as_on_the_cpu(one, TestFixture::rule_of(one).value(), random);
    });
  });
}

TYPED_TEST(KernelsSelect, GoOnFromTheLastStepsThresholdAndLeaveTheNext) {
  testing::for_each_seed(scaled(64), [&](std::uint64_t seed) {
    auto one = this->random_case(seed, "threshold", 2 * device::kTile);
    TestFixture::let_it_have_a_state(seed, one);
    std::mt19937_64 random(seed);
    const auto rule = TestFixture::rule_of(one);
    ASSERT_TRUE(rule.has_value() && rule->kind == SelectionKind::kThreshold) << one.description();
    this->expect_as_on_the_cpu(one, *rule, random);
  });
}

TYPED_TEST(KernelsSelect, FindWhatIsNotFiniteByEachSelector) {
  this->for_each_selector([&](const std::string& selector) {
    testing::for_each_seed(scaled(8), [&](std::uint64_t seed) {
      auto one = this->random_case(seed, selector, 2 * device::kTile);
      std::mt19937_64 random(seed);
      TestFixture::spoil(one, random);
      const auto seen = TestFixture::on_the_gpu(one, TestFixture::rule_of(one).value(), random);
      EXPECT_FALSE(seen.selection.finite) << one.description();
      EXPECT_EQ(seen.selection.count, 0U) << one.description();
    });
  });
}

TYPED_TEST(KernelsSelect, TiesInMultiTileBlock_KeepLowestIndices) {
  const typename TestFixture::TiesInBlocks ties;
  testing::for_each_seed(scaled(4), [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto seen = TestFixture::on_the_gpu(ties.one, ties.rule, random);
    EXPECT_EQ(seen.list.indices, ties.indices);
    EXPECT_TRUE(std::ranges::all_of(seen.list.values, [](auto value) { return value == -2; }));
  });
}

}  // namespace
}  // namespace gtopk::sparse
