// The kernels of a commit, on the CPU, and the edits that the host works out for them: together
// what the CPU's own commit writes, bit for bit.
#include "src/gtopk/device/commit.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "src/gtopk/device/lists.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/residual/edits.hpp"
#include "tests/gtopk/device/pieces_of.hpp"
#include "tests/gtopk/value/all_types.hpp"
#include "tests/gtopk/value/random_lists.hpp"
#include "tests/gtopk/value/random_values.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using testing::HostExecutor;
using testing::InPieces;
using testing::Kind;

template <class Param>
class DeviceCommit : public ::testing::Test {
 protected:
  using T = typename Param::T;
  using Index = typename Param::Index;
  using Value = Accumulation<T>;

  struct Case {
    std::vector<T> tensor;
    std::vector<Value> residual;  // empty: none
    std::vector<Value> momentum;  // empty: none
    testing::List<Value, Index> own;
    testing::List<Value, Index> result;
    std::vector<testing::List<Value, Index>> dropped;
    PutBack put_back = PutBack::kOwn;
    Value divisor = 1;

    [[nodiscard]] std::vector<Entries<Value, Index>> views() const {
      std::vector<Entries<Value, Index>> views;
      for (const auto& list : dropped) {
        views.push_back(list.view());
      }
      return views;
    }
    [[nodiscard]] static Value* data(std::vector<Value>& numbers) {
      return numbers.empty() ? nullptr : numbers.data();
    }
  };

  static testing::List<Value, Index> random_list(std::size_t d, std::size_t gap,
                                                 std::mt19937_64& random) {
    return testing::random_list_below<Value, Index>(d, gap, random);
  }

  static Case random_case(std::mt19937_64& random, std::size_t largest) {
    Case one;
    const std::size_t d = 1 + random() % largest;
    one.tensor = testing::random_values<T>(testing::random_kind(random), d, random);
    if (random() % 5 != 0) {
      one.residual = testing::random_values<Value>(testing::random_kind(random), d, random);
    }
    if (random() % 3 == 0) {
      one.momentum = testing::random_values<Value>(Kind::kGaussian, d, random);
    }
    const std::size_t sparsity = 1 + random() % 20;
    one.own = random_list(d, sparsity, random);
    one.result = random_list(d, sparsity, random);
    for (std::size_t list = random() % 5; list > 0; --list) {
      one.dropped.push_back(random_list(d, sparsity, random));
    }
    one.put_back = random() % 2 == 0 ? PutBack::kOwn : PutBack::kMerged;
    one.divisor = static_cast<Value>(1 + random() % 9);
    return one;
  }

  static Case on_the_cpu(Case one, bool happened) {
    if (!happened) {
      fill_nan(Segments<T>(one.tensor.data()), one.tensor.size());
      return one;
    }
    const auto dropped = one.views();
    commit<T, Value, Index>(one.tensor.data(), Case::data(one.residual), one.tensor.size(),
                            one.own.view(), one.result.view(), dropped.data(), dropped.size(),
                            one.put_back, one.divisor);
    if (!one.momentum.empty()) {
      mask(one.momentum.data(), one.own.view(), one.result.view(), one.put_back);
    }
    return one;
  }

  static Case on_the_device(Case one, bool happened, std::mt19937_64& random) {
    const InPieces<T> pieces(one.tensor, one.residual, random() % 2 == 0, random);
    const auto dropped = one.views();
    std::size_t all_dropped = 0;
    for (const auto& list : dropped) {
      all_dropped += list.size;
    }
    std::vector<Index> cleared(one.own.indices.size());
    testing::List<Value, Index> returned;
    testing::List<Value, Index> delivered;
    const Edits<Value, Index> edits{cleared.data(), returned.out(all_dropped),
                                    delivered.out(one.result.indices.size())};
    EditCounts counts = make_edits<Value, Index>(one.own.view(), one.result.view(), dropped,
                                                 one.put_back, all_dropped, edits);
    counts.happened = happened ? 1 : 0;
    HostExecutor executor(random(), 1 + random() % 4);
    device::commit<T, Index>(executor, pieces.view(), Case::data(one.momentum), edits, &counts,
                             one.divisor);
    one.tensor = pieces.joined();
    return one;
  }

  /// The same from the lists where they lie.
  static Case from_lists(Case one, bool happened, std::mt19937_64& random) {
    const InPieces<T> pieces(one.tensor, one.residual, random() % 2 == 0, random);
    const auto place = [](testing::List<Value, Index>& list) {
      return DeviceList{list.indices.data(), list.values.data(), list.indices.size()};
    };
    ListEdits edits;
    edits.happened = happened ? 1 : 0;
    edits.put_back_own = one.put_back == PutBack::kOwn ? 1 : 0;
    edits.own = place(one.own);
    edits.result = place(one.result);
    edits.dropped_lists = one.dropped.size();
    std::ranges::transform(one.dropped, std::begin(edits.dropped), place);
    HostExecutor executor(random(), 1 + random() % 4);
    const auto most = static_cast<std::uint32_t>(one.dropped.size() + random() % 3);
    device::commit_lists<T, Index>(executor, pieces.view(), Case::data(one.momentum), &edits, most,
                                   one.divisor);
    one.tensor = pieces.joined();
    return one;
  }

  static void expect_same(const Case& seen, const Case& expected) {
    EXPECT_TRUE(testing::same_bits(seen.tensor, expected.tensor));
    EXPECT_TRUE(testing::same_bits(seen.residual, expected.residual));
    EXPECT_TRUE(testing::same_bits(seen.momentum, expected.momentum));
  }
};

TYPED_TEST_SUITE(DeviceCommit, testing::AllTypes);

TYPED_TEST(DeviceCommit, WritesWhatTheCpuWrites) {
  testing::for_each_seed(120, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::random_case(random, seed % 4 == 0 ? 15'000 : 600);
    const auto expected = TestFixture::on_the_cpu(one, true);
    TestFixture::expect_same(TestFixture::on_the_device(one, true, random), expected);
    TestFixture::expect_same(TestFixture::from_lists(one, true, random), expected);
  });
}

TYPED_TEST(DeviceCommit, AStepThatDidNotHappenLeavesNanAndTheResidual) {
  testing::for_each_seed(20, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::random_case(random, 9'000);
    const auto expected = TestFixture::on_the_cpu(one, false);
    TestFixture::expect_same(TestFixture::on_the_device(one, false, random), expected);
    TestFixture::expect_same(TestFixture::from_lists(one, false, random), expected);
  });
}

TYPED_TEST(DeviceCommit, ChecksValuesAsTheCpuDoes) {
  using T = typename TestFixture::T;
  using Index = typename TestFixture::Index;
  using Value = typename TestFixture::Value;
  int fitted = 0;
  testing::for_each_seed(60, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto list = TestFixture::random_list(1 + random() % 9'000, 3, random);
    if (seed % 3 != 0 && !list.values.empty()) {
      Value& one = list.values[random() % list.values.size()];
      one = seed % 3 == 1 ? std::numeric_limits<Value>::max() / 2 : one * 1000;
    }
    const auto divisor = static_cast<Value>(1 + random() % 3);
    std::uint64_t fits = 1;
    HostExecutor executor(random(), 1 + random() % 4);
    executor.launch(executor.wide(),
                    device::CheckValues<T>{list.values.data(), list.values.size(), divisor, &fits});
    EXPECT_EQ(fits != 0, (representable<T, Value, Index>(list.view(), divisor)));
    fitted += fits != 0 ? 1 : 0;
  });
  EXPECT_GE(fitted, 20);
}

}  // namespace
}  // namespace gtopk::sparse
