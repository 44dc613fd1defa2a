// The calls of the kernels' library on lists, on the GPU: merging, looking at a result, and
// committing edits or lists, with the CPU's bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "src/gtopk/residual/edits.hpp"
#include "tests/cuda/kernels_acc.hpp"
#include "tests/gtopk/device/commit_cases.hpp"
#include "tests/gtopk/device/merge_cases.hpp"
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
class KernelsMerge : public ::testing::Test {
 protected:
  using Value = typename Param::Value;
  using Index = typename Param::Index;
  using Case = testing::MergeCase<Value, Index>;
  using Outcome = testing::MergeOutcome<Value, Index>;

  struct Way {
    bool unites = false;
    bool wants_dropped = true;
    /// Indices of `b` are to ascend below it; 0: they are not checked.
    std::uint64_t d = 0;
  };

  struct Seen {
    SelectionReport report;
    Outcome outcome;
    bool sound = true;
  };

  static Seen on_the_gpu(const Case& one, const Way& way, std::mt19937_64& random) {
    const std::size_t all = one.all();
    const std::size_t most = way.unites ? all : std::min(one.k, all);
    const ListThere<Value, Index> a(Place::kDevice, one.a);
    const ListThere<Value, Index> b(testing::either(random), one.b);
    const ListThere<Value, Index> kept(Place::kDevice, most);
    const ListThere<Value, Index> dropped(Place::kDevice, all);
    const One<SelectionReport> report(Place::kPinned, {.kept = 0, .dropped = 0, .finite = 1});
    const One<std::uint64_t> sound(Place::kPinned, 1);
    cuda::MergeCall call;
    call.values = sizeof(Value) == 8 ? DataType::kFloat64 : DataType::kFloat32;
    call.index_bytes = sizeof(Index);
    const Array<std::byte> room(
        Place::kDevice, testing::Gpu::get().calls().merge_room(call.values, call.index_bytes, all));
    call.a = a.of();
    call.b = b.of();
    call.k = one.k;
    call.room = room.data();
    call.kept = kept.of();
    call.dropped = way.wants_dropped && !way.unites ? dropped.of() : cuda::ListOf{};
    call.report = report.data();
    call.unites = way.unites ? 1 : 0;
    call.sound = way.d == 0 ? nullptr : sound.data();
    call.d = way.d;
    testing::run(&cuda::Calls::merge, call);
    Seen seen;
    seen.report = report.value();
    seen.sound = sound.value() != 0;
    seen.outcome.finite = seen.report.finite != 0;
    EXPECT_LE(seen.report.kept, most);
    EXPECT_LE(seen.report.dropped, all);
    seen.outcome.kept = kept.read(std::min<std::size_t>(seen.report.kept, most));
    if (way.wants_dropped && !way.unites) {
      seen.outcome.dropped = dropped.read(std::min<std::size_t>(seen.report.dropped, all));
    }
    return seen;
  }

  static void expect_as_on_the_cpu(const Case& one, std::mt19937_64& random) {
    const Outcome expected = testing::merged_on_the_cpu(one);
    const Outcome seen = on_the_gpu(one, {}, random).outcome;
    EXPECT_EQ(seen.finite, expected.finite);
    EXPECT_TRUE(testing::same_bits(seen.kept, expected.kept));
    EXPECT_TRUE(testing::same_bits(seen.dropped, expected.dropped));
    const Outcome swapped = on_the_gpu(one.swapped(), {.wants_dropped = false}, random).outcome;
    EXPECT_TRUE(testing::same_bits(swapped.kept, expected.kept));

    const Outcome united = testing::united_on_the_cpu(one);
    Outcome union_seen = on_the_gpu(one, {.unites = true}, random).outcome;
    EXPECT_EQ(union_seen.finite, united.finite);
    if (united.finite) {
      EXPECT_TRUE(testing::same_bits(union_seen.kept, united.kept));
    }
  }
};

TYPED_TEST_SUITE(KernelsMerge, testing::AllListTypes);

TYPED_TEST(KernelsMerge, GiveWhatTheCpuGives) {
  testing::for_each_seed(scaled(80), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Case::random(seed, random);
    TestFixture::expect_as_on_the_cpu(one, random);
    TestFixture::expect_as_on_the_cpu(TestFixture::Case::cancelling(one, random), random);
  });
}

TYPED_TEST(KernelsMerge, NoticeSumsThatAreNotFinite) {
  std::mt19937_64 random(3);
  testing::for_each_infinite_sum<typename TestFixture::Value, typename TestFixture::Index>(
      [&](const auto& one) { TestFixture::expect_as_on_the_cpu(one, random); });
}

TYPED_TEST(KernelsMerge, KeepNothingOfAListWhoseIndicesDoNotAscendBelowD) {
  using Case = testing::UnsoundCase<typename TestFixture::Value, typename TestFixture::Index>;
  testing::for_each_seed(scaled(32), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = Case::random(seed, random);
    for (const bool unites : {false, true}) {
      const auto seen = TestFixture::on_the_gpu(one.lists, {.unites = unites, .d = one.d}, random);
      EXPECT_EQ(seen.sound, one.sound);
      const auto expected =
          unites ? testing::united_on_the_cpu(one.lists) : testing::merged_on_the_cpu(one.lists);
      if (one.sound) {
        EXPECT_TRUE(testing::same_bits(seen.outcome.kept, expected.kept));
      } else {
        EXPECT_EQ(seen.report.kept, 0U);
        EXPECT_EQ(seen.report.dropped, 0U);
      }
    }
  });
}

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
        : acc(one.tensor, one.residual, sizeof(Index), random() % 2 == 0, random),
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
    EditCounts counts = make_edits<Value, Index>(one.own.view(), one.result.view(), dropped,
                                                 one.put_back, one.all_dropped(),
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

  /// By the lists where they are.
  static Case by_lists(const Case& one, bool happened, std::mt19937_64& random) {
    const Target target(one, random);
    const ListThere<Value, Index> own(Place::kDevice, one.own);
    const ListThere<Value, Index> result(testing::either(random), one.result);
    std::vector<ListThere<Value, Index>> dropped;
    for (const auto& list : one.dropped) {
      dropped.emplace_back(Place::kDevice, list);
    }
    ListEdits edits;
    edits.happened = happened ? 1 : 0;
    edits.put_back_own = one.put_back == PutBack::kOwn ? 1 : 0;
    edits.own = own.device_list();
    edits.result = result.device_list();
    edits.dropped_lists = dropped.size();
    std::ranges::transform(dropped, std::begin(edits.dropped),
                           [](const auto& list) { return list.device_list(); });
    const One<ListEdits> shared(Place::kPinned, edits);
    cuda::CommitListsCall call;
    call.acc = target.acc.view();
    call.momentum = target.momentum_data();
    call.edits = shared.data();
    call.most_dropped = static_cast<std::uint32_t>(dropped.size() + random() % 3);
    call.divisor = static_cast<double>(one.divisor);
    testing::run(&cuda::Calls::commit_lists, call);
    return target.after(one);
  }
};

TYPED_TEST_SUITE(KernelsCommit, testing::AllTypes);

TYPED_TEST(KernelsCommit, WriteWhatTheCpuWrites) {
  testing::for_each_seed(scaled(48), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Case::random(random, seed % 4 == 0 ? 15'000 : 600);
    const auto expected = testing::committed_on_the_cpu(one, true);
    testing::expect_same(TestFixture::by_edits(one, true, 0, random), expected);
    testing::expect_same(TestFixture::by_lists(one, true, random), expected);
  });
}

TYPED_TEST(KernelsCommit, LeaveNanAndTheResidualOfAStepThatDidNotHappen) {
  testing::for_each_seed(scaled(12), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = TestFixture::Case::random(random, 9'000);
    const auto expected = testing::committed_on_the_cpu(one, false);
    testing::expect_same(TestFixture::by_edits(one, false, 0, random), expected);
    testing::expect_same(TestFixture::by_lists(one, false, random), expected);
  });
}

TYPED_TEST(KernelsCommit, LeaveAllAsItIsIfItIsNotTheirTurn) {
  std::mt19937_64 random(1);
  const auto one = TestFixture::Case::random(random, 9'000);
  testing::expect_same(TestFixture::by_edits(one, false, 1, random), one);
}

template <class Param>
class KernelsInspect : public ::testing::Test {
 protected:
  using T = typename Param::T;
  using Index = typename Param::Index;
  using Value = Accumulation<T>;
  using Entry = testing::List<Value, Index>;

  struct Seen {
    bool sound = true;
    bool fits = true;
    Entry copy;  // none if there was none
  };

  /// `checked`: that its indices ascend has been found out before.
  static Seen on_the_gpu(const Entry& list, std::uint64_t d, Value divisor, bool checked,
                         bool copies, std::mt19937_64& random) {
    const ListThere<Value, Index> there(testing::either(random), list);
    const ListThere<Value, Index> copy(Place::kPinned, list.indices.size());
    const One<std::uint64_t> sound(Place::kPinned, 1);
    const One<std::uint64_t> fits(Place::kPinned, 1);
    cuda::InspectCall call;
    call.dtype = testing::kTypeOf<T>;
    call.index_bytes = sizeof(Index);
    call.list = there.of();
    call.d = d;
    call.divisor = static_cast<double>(divisor);
    call.sound = sound.data();
    call.fits = fits.data();
    call.copy = copies ? copy.of() : cuda::ListOf{};
    call.checked = checked ? 1 : 0;
    testing::run(&cuda::Calls::inspect, call);
    return {sound.value() != 0, fits.value() != 0,
            copies ? copy.read(list.indices.size()) : Entry{}};
  }
};

TYPED_TEST_SUITE(KernelsInspect, testing::AllTypes);

TYPED_TEST(KernelsInspect, FindWhatDoesNotFitAndCopyTheList) {
  using T = typename TestFixture::T;
  using Index = typename TestFixture::Index;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(scaled(36), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto [list, divisor] = testing::ResultCase<Value, Index>::random(seed, random);
    const auto seen = TestFixture::on_the_gpu(list, 10'000, divisor, seed % 2 == 0, true, random);
    EXPECT_TRUE(seen.sound);
    EXPECT_EQ(seen.fits, (representable<T, Value, Index>(list.view(), divisor)));
    EXPECT_TRUE(testing::same_bits(seen.copy, list));
  });
}

TYPED_TEST(KernelsInspect, FindIndicesThatDoNotAscendBelowD) {
  using Index = typename TestFixture::Index;
  using Value = typename TestFixture::Value;
  testing::for_each_seed(scaled(16), [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one = testing::UnsoundCase<Value, Index>::random(seed, random);
    const auto seen = TestFixture::on_the_gpu(one.lists.b, one.d, 1, false, false, random);
    EXPECT_EQ(seen.sound, one.sound);
  });
}

}  // namespace
}  // namespace gtopk::sparse
