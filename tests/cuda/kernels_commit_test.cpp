// The call of the kernels' library that commits the edits of lists, on the GPU, with the CPU's
// bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>

#include "src/gtopk/residual/edits.hpp"
#include "tests/cuda/kernels_acc.hpp"
#include "tests/gtopk/device/commit_cases.hpp"
#include "tests/gtopk/value/seeds.hpp"

namespace gtopk::sparse {
namespace {

using testing::Array;
using testing::ListThere;
using testing::One;
using testing::Place;
using testing::scaled;
using testing::VectorThere;

template <class Param>
class KernelsCommit : public ::testing::Test {
 protected:
  using T = typename Param::T;
  using Index = typename Param::Index;
  using Value = Accumulation<T>;
  using Case = testing::CommitCase<T, Index>;

  /// A case's vector and momentum in the GPU's memory.
  struct Target {
    Target(const Case& one, std::mt19937_64& random)
        : acc(one.tensor, one.residual, random() % 2 == 0, random),
          momentum(Place::kDevice, one.momentum) {}
    [[nodiscard]] void* momentum_data() const {
      return momentum.size() == 0 ? nullptr : momentum.data();
    }
    [[nodiscard]] Case after(Case one) const {
      one.tensor = acc.joined();
      one.residual = acc.residual();
      one.momentum = momentum.read();
      return one;
    }

    VectorThere<T> acc;
    Array<Value> momentum;
  };

  /// By the edits that the host works out. `unless`: what the call is to look at before it begins.
  static Case by_edits(const Case& one, bool happened, std::uint64_t unless,
                       std::mt19937_64& random) {
    const Target target(one, random);
    const auto dropped = one.views();
    const Array<Index> cleared(Place::kPinned, one.own.indices.size());
    const ListThere<Value, Index> returned(Place::kPinned, one.all_dropped());
    const ListThere<Value, Index> delivered(Place::kPinned, one.result.indices.size());
    EditCounts counts = make_edits<Value, Index>({.own = one.own.view(),
                                                  .result = one.result.view(),
                                                  .dropped = dropped,
                                                  .put_back = one.put_back},
                                                 one.all_dropped(),
                                                 {cleared.data(), returned.out(), delivered.out()});
    counts.happened = happened ? 1 : 0;
    const One<EditCounts> counted(Place::kPinned, counts);
    const One<std::uint64_t> asked(Place::kPinned, unless);
    cuda::CommitCall call;
    call.acc = target.acc.view();
    call.momentum = target.momentum_data();
    call.cleared = cleared.data();
    call.returned = returned.of();
    call.delivered = delivered.of();
    call.counts = counted.data();
    call.divisor = static_cast<double>(one.divisor);
    call.unless = unless != 0 || random() % 2 == 0 ? asked.data() : nullptr;
    testing::run(&cuda::Calls::commit, call);
    return target.after(one);
  }
};

TYPED_TEST_SUITE(KernelsCommit, testing::NarrowTypes);

TYPED_TEST(KernelsCommit, WriteWhatTheCpuWrites) {
  testing::for_each_seed(scaled(48), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Case::random(random, seed % 4 == 0 ? 15'000 : 600);
    const auto expected = testing::committed_on_the_cpu(one, true);
    testing::expect_same(TestFixture::by_edits(one, true, 0, random), expected);
  });
}

TYPED_TEST(KernelsCommit, LeaveNanAndTheResidualOfAStepThatDidNotHappen) {
  testing::for_each_seed(scaled(12), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Case::random(random, 9'000);
    const auto expected = testing::committed_on_the_cpu(one, false);
    testing::expect_same(TestFixture::by_edits(one, false, 0, random), expected);
  });
}

TYPED_TEST(KernelsCommit, LeaveAllAsItIsIfItIsNotTheirTurn) {
  std::mt19937_64 random(1);
  const auto one = TestFixture::Case::random(random, 9'000);
  testing::expect_same(TestFixture::by_edits(one, false, 1, random), one);
}

}  // namespace
}  // namespace gtopk::sparse
