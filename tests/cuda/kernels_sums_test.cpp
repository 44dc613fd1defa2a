// The calls of the kernels' library that select nothing, on the GPU: acc, all of it or at indices,
// its sketch, what is heavy there, and the commit of all sums, with the CPU's bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "src/gtopk/value/sketch_hashes.hpp"
#include "tests/cuda/kernels_acc.hpp"
#include "tests/gtopk/device/sketch_cases.hpp"
#include "tests/gtopk/device/sums_cases.hpp"
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
class KernelsSums : public ::testing::Test {
 protected:
  using T = typename Param::T;
  using Index = typename Param::Index;
  using Value = Accumulation<T>;
  using Vector = testing::SumsVector<T>;

  static VectorThere<T> there(const Vector& one, std::mt19937_64& random) {
    return VectorThere<T>(one.tensor, one.residual, true, random);
  }
};

TYPED_TEST_SUITE(KernelsSums, testing::NarrowTypes);

TYPED_TEST(KernelsSums, AccumulateAsTheCpuDoesAndOnlyIfAsked) {
  using Value = typename TestFixture::Value;
  testing::for_each_seed(scaled(24), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto one = TestFixture::Vector::random(random);
    const auto acc = TestFixture::there(one, random);
    const std::vector<Value> untouched(one.d(), Value{5});
    const Array<Value> to(Place::kPinned, untouched);
    const One<std::uint64_t> asked(Place::kPinned, 0);
    testing::run(&cuda::Calls::accumulate,
                 cuda::AccumulateCall{acc.view(), to.data(), asked.data()});
    EXPECT_TRUE(testing::same_bits(to.read(), untouched));
    *asked.data() = 1;
    testing::run(
        &cuda::Calls::accumulate,
        cuda::AccumulateCall{acc.view(), to.data(), seed % 2 == 0 ? asked.data() : nullptr});
    EXPECT_TRUE(testing::same_bits(to.read(), one.acc()));
  });
}

TYPED_TEST(KernelsSums, GatherAsTheCpuDoes) {
  using Index = typename TestFixture::Index;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(scaled(32), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    auto one = TestFixture::Vector::random(random);
    auto indices = testing::random_indices<Index>(one.d(), random);
    const auto expected = testing::gathered_on_the_cpu(one, indices);
    const auto acc = TestFixture::there(one, random);
    const Array<Index> at(Place::kPinned, indices);
    const Array<Value> values(Place::kPinned, indices.size());
    const One<std::uint64_t> finite(Place::kPinned, 1);
    testing::run(&cuda::Calls::gather, cuda::GatherCall{acc.view(), at.data(), indices.size(),
                                                        values.data(), finite.data()});
    const auto all = one.acc();
    EXPECT_EQ(finite.value() != 0, testing::all_finite(all));
    if (finite.value() != 0) {
      EXPECT_TRUE(testing::same_bits(values.read(), expected));
    }
  });
}

TYPED_TEST(KernelsSums, CommitAllOfThemAsTheCpuDoesAndOnlyIfAsked) {
  using Value = typename TestFixture::Value;
  testing::for_each_seed(scaled(24), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Vector::random(random);
    const bool happened = seed % 3 != 0;
    const auto divisor = static_cast<Value>(1 + random() % 9);
    const auto sums = testing::random_values<Value>(testing::random_kind(random), one.d(), random);
    const auto expected = testing::committed_on_the_cpu(one, sums, happened, divisor);
    const auto acc = TestFixture::there(one, random);
    const Array<Value> there(Place::kPinned, sums);
    const One<EditCounts> counts(Place::kPinned, {.happened = happened ? 1U : 0U});
    const One<std::uint64_t> asked(Place::kPinned, 0);
    cuda::CommitWholeCall call{acc.view(), there.data(), counts.data(),
                               static_cast<double>(divisor), asked.data()};
    testing::run(&cuda::Calls::commit_whole, call);
    EXPECT_TRUE(testing::same_bits(acc.joined(), one.tensor));
    EXPECT_TRUE(testing::same_bits(acc.residual(), one.residual));
    *asked.data() = 1;
    call.only_if = seed % 2 == 0 ? asked.data() : nullptr;
    testing::run(&cuda::Calls::commit_whole, call);
    EXPECT_TRUE(testing::same_bits(acc.joined(), expected.tensor));
    EXPECT_TRUE(testing::same_bits(acc.residual(), expected.residual));
  });
}

template <class Param>
class KernelsSketch : public ::testing::Test {
 protected:
  using T = typename Param::T;
  using Index = typename Param::Index;
  using Value = Accumulation<T>;

  static Array<std::byte> workspace_for(std::uint64_t columns, std::uint64_t d,
                                        std::uint64_t most) {
    return Array<std::byte>(Place::kDevice,
                            testing::Gpu::get().calls().sketch_workspace_bytes(
                                accumulation_type(testing::kTypeOf<T>), columns, d, most));
  }

  /// The indices of what is heavy in those cells.
  static std::vector<Index> found(const testing::HeavyCase<Value>& one, std::uint64_t seed,
                                  const Array<Value>& cells, const Array<std::byte>& workspace) {
    const ListThere<Value, Index> heaviest(Place::kPinned, one.most);
    const One<SelectionReport> report(Place::kPinned, {});
    cuda::FindCall call;
    call.values = accumulation_type(testing::kTypeOf<T>);
    call.d = one.d;
    call.seed = seed;
    call.columns = one.columns;
    call.cells = cells.data();
    call.most = one.most;
    call.workspace = workspace.data();
    call.heaviest = heaviest.of();
    call.report = report.data();
    testing::run(&cuda::Calls::find, call);
    EXPECT_LE(report.value().kept, one.most);
    return heaviest.read(std::min<std::size_t>(report.value().kept, one.most)).indices;
  }
};

TYPED_TEST_SUITE(KernelsSketch, testing::NarrowTypes);

TYPED_TEST(KernelsSketch, HaveTheCellsOfTheCpusAndFindWhatIsHeavyInThem) {
  using T = typename TestFixture::T;
  using Index = typename TestFixture::Index;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(scaled(24), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = testing::SketchCase<T>::random(seed, random);
    const auto expected = testing::cells_on_the_cpu(one, seed);
    const testing::HeavyCase<Value> heavy{
        .d = one.d(), .columns = one.columns, .most = 1 + random() % 300, .cells = expected};
    const VectorThere<T> acc(one.tensor, one.residual, true, random);
    const auto workspace = TestFixture::workspace_for(one.columns, one.d(), heavy.most);
    const Array<Value> cells(Place::kPinned, expected.size());
    cuda::SketchCall call;
    call.acc = acc.view();
    call.seed = seed;
    call.columns = one.columns;
    call.workspace = workspace.data();
    call.cells = cells.data();
    testing::run(&cuda::Calls::sketch, call);
    ASSERT_TRUE(testing::same_cells(cells.read(), expected));
    if (testing::all_finite(expected)) {
      EXPECT_EQ(TestFixture::found(heavy, seed, cells, workspace),
                testing::heaviest_on_the_cpu<Index>(heavy, seed));
    }
  });
}

TYPED_TEST(KernelsSketch, FindWhatTheCpuFindsInAnyCells) {
  using Index = typename TestFixture::Index;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(scaled(12), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = testing::HeavyCase<Value>::random(random);
    const Array<Value> cells(Place::kPinned, one.cells);
    EXPECT_EQ(TestFixture::found(one, seed, cells,
                                 TestFixture::workspace_for(one.columns, one.d, one.most)),
              testing::heaviest_on_the_cpu<Index>(one, seed));
  });
}

}  // namespace
}  // namespace gtopk::sparse
