// The kernels of a commit, on the CPU, and the edits that the host works out for them: together
// what the CPU's own commit writes, bit for bit.
#include "src/gtopk/device/commit.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "src/gtopk/residual/edits.hpp"
#include "tests/gtopk/device/commit_cases.hpp"
#include "tests/gtopk/device/pieces_of.hpp"
#include "tests/gtopk/value/all_types.hpp"
#include "tests/gtopk/value/reference.hpp"
#include "tests/gtopk/value/seeds.hpp"
#include "tests/support/host_executor.hpp"

namespace gtopk::sparse {
namespace {

using testing::HostExecutor;
using testing::InPieces;

template <class Param>
class DeviceCommit : public ::testing::Test {
 protected:
  using T = typename Param::T;
  using Index = typename Param::Index;
  using Value = Accumulation<T>;

  using Case = testing::CommitCase<T, Index>;

  static Case on_the_device(Case one, bool happened, std::mt19937_64& random) {
    const InPieces<T> pieces(one.tensor, one.residual, random() % 2 == 0, random);
    const auto dropped = one.views();
    std::vector<Index> cleared(one.own.indices.size());
    testing::List<Value, Index> returned;
    testing::List<Value, Index> delivered;
    const Edits<Value, Index> edits{cleared.data(), returned.out(one.all_dropped()),
                                    delivered.out(one.result.indices.size())};
    EditCounts counts = make_edits<Value, Index>({.own = one.own.view(),
                                                  .result = one.result.view(),
                                                  .dropped = dropped,
                                                  .put_back = one.put_back},
                                                 one.all_dropped(), edits);
    counts.happened = happened ? 1 : 0;
    HostExecutor executor(random(), 1 + random() % 4);
    device::commit<T>(executor, pieces.view(), Case::data(one.momentum), edits, &counts,
                      one.divisor);
    one.tensor = pieces.joined();
    return one;
  }
};

TYPED_TEST_SUITE(DeviceCommit, testing::NarrowTypes);

TYPED_TEST(DeviceCommit, WritesWhatTheCpuWrites) {
  testing::for_each_seed(120, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Case::random(random, seed % 4 == 0 ? 15'000 : 600);
    const auto expected = testing::committed_on_the_cpu(one, true);
    testing::expect_same(TestFixture::on_the_device(one, true, random), expected);
  });
}

TYPED_TEST(DeviceCommit, AStepThatDidNotHappenLeavesNanAndTheResidual) {
  testing::for_each_seed(20, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Case::random(random, 9'000);
    const auto expected = testing::committed_on_the_cpu(one, false);
    testing::expect_same(TestFixture::on_the_device(one, false, random), expected);
  });
}

}  // namespace
}  // namespace gtopk::sparse
