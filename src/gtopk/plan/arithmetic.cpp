#include "src/gtopk/plan/arithmetic.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <vector>

#include "src/collectives/reduction.hpp"
#include "src/gtopk/merge/merge.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/select/select_exact.hpp"
#include "src/gtopk/value/growing_buffer.hpp"
#include "src/gtopk/wire/coded.hpp"

namespace gtopk::sparse {
namespace {

using Index = std::uint32_t;

/// The number of elements, which, like a gradient, exceeds most caches.
constexpr std::size_t kElements = std::size_t{1} << 20U;
constexpr std::size_t kSelected = kElements / 100;
/// The number of entries, enough for the cost of each to be measurable.
constexpr std::size_t kManySelected = kElements / 10;
constexpr int kRuns = 3;

/// The processor time of this thread, which excludes waits for a core.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Returns the processor time of the fastest run, per element of `count`.
template <class Run>
double nanoseconds_each(std::size_t count, Run run) {
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kRuns; ++i) {
    const double begin = processor_seconds();
    run();
    best = std::min(best, processor_seconds() - begin);
  }
  return best * 1e9 / static_cast<double>(count);
}

/// Makes values in random order, of either sign, few of them large.
std::vector<float> gradient() {
  std::vector<float> values(kElements);
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;  // Numerical Recipes
    const auto uniform = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
    value = uniform * uniform * uniform;
  }
  return values;
}

/// Returns what each of `more` entries adds to the cost of each of `count` elements. It is never
/// negative, although both costs were timed.
double of_each_entry(double with, double without, std::size_t count, std::size_t more) {
  return std::max(0.0, with - without) * static_cast<double>(count) / static_cast<double>(more);
}

class HeapBuffers final : public BufferSource {
 public:
  std::span<std::byte> buffer(std::size_t bytes) override {
    return {buffers_.emplace_back().array<std::byte>(bytes), bytes};
  }
  void forget() { buffers_.clear(); }

 private:
  std::deque<GrowingBuffer> buffers_;
};

struct EntryArrays {
  explicit EntryArrays(std::size_t size) : indices(size), values(size) {}

  [[nodiscard]] EntriesOut<float, Index> out() { return {indices.data(), values.data()}; }
  [[nodiscard]] Entries<float, Index> entries(std::size_t size) const {
    return {indices.data(), values.data(), size};
  }

  std::vector<Index> indices;
  std::vector<float> values;
};

/// Makes a list that shares some of its indices with the given one.
EntryArrays shifted(const EntryArrays& list) {
  EntryArrays other = list;
  const std::size_t size = list.indices.size();
  for (std::size_t i = 0; i < size; i += 2) {
    const Index next = i + 1 < size ? list.indices[i + 1] : Index{kElements};
    other.indices[i] = std::min(list.indices[i] + 1, next - 1);
  }
  return other;
}

double coding(const EntryArrays& selected) {
  HeapBuffers buffers;
  const EntryType type;
  const Codec& codec = kLossless.codec;
  List list = codec.make(type, kSelected, buffers);
  std::ranges::copy(selected.indices, list.output<float, Index>().indices);
  std::ranges::copy(selected.values, list.output<float, Index>().values);
  codec.close(type, list, kSelected);
  HeapBuffers messages;
  return nanoseconds_each(2 * kSelected, [&] {
    messages.forget();
    const std::span<std::byte> message = codec.encode(type, list, kElements, messages);
    const List read = codec.decode(type, {kSelected, type.index_bytes, true}, message, kSelected,
                                   kElements, messages);
    static_cast<void>(read);
  });
}

/// Measures how much longer this thread has taken since construction than it would on its own core,
/// because ranks may outnumber their cores.
class Crowding {
 public:
  [[nodiscard]] double factor() const {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
    return std::max(1.0, taken.count() / (processor_seconds() - processor_begin_));
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double processor_begin_ = processor_seconds();
};

}  // namespace

void keep_a_core_busy() {
  constexpr double kSeconds = 1e-3;
  const double begin = processor_seconds();
  while (processor_seconds() - begin < kSeconds) {
  }
}

void measure_arithmetic(Costs& costs) {
  const Crowding crowding;
  std::vector<float> tensor = gradient();
  std::vector<float> residual(kElements);
  EntryArrays selected(kSelected);
  EntryArrays many(kManySelected);
  SelectScratch selecting;
  std::size_t count = 0;
  const auto selecting_time = [&](EntryArrays& output, std::size_t k) {
    return nanoseconds_each(kElements, [&] {
      count =
          select_exact<float, float, Index>(Segments<const float>(tensor.data()), residual.data(),
                                            kElements, k, output.out(), selecting)
              .count;
    });
  };
  const double selecting_many = selecting_time(many, kManySelected);
  const double selecting_few = selecting_time(selected, kSelected);
  costs.pick = of_each_entry(selecting_many, selecting_few, kElements, kManySelected - kSelected);
  costs.select = std::max(
      0.0, selecting_few - costs.pick * static_cast<double>(kSelected) / double{kElements});
  costs.code = coding(selected);

  const EntryArrays other = shifted(selected);
  EntryArrays kept(2 * kSelected);
  EntryArrays dropped(2 * kSelected);
  EntriesOut<float, Index> drop = dropped.out();
  MergeScratch merging;
  costs.merge = nanoseconds_each(2 * kSelected, [&] {
    static_cast<void>(merge<float, Index>(selected.entries(count), other.entries(count), kSelected,
                                          kept.out(), &drop, merging));
  });
  costs.unite = nanoseconds_each(2 * kSelected, [&] {
    static_cast<void>(
        unite<float, Index>(selected.entries(count), other.entries(count), kept.out()));
  });
  costs.copy = nanoseconds_each(kSelected, [&] {
    std::ranges::copy(selected.indices, kept.indices.begin());
    std::ranges::copy(selected.values, kept.values.begin());
  });
  costs.add = nanoseconds_each(kElements, [&] {
    collectives::reduce(residual.data(), residual.data(), tensor.data(), kElements,
                        DataType::kFloat32, ReduceOp::kSum);
  });
  // The same number of entries is sent, delivered and put back.
  const EntryArrays delivered = shifted(many);
  const auto committing_time = [&](std::size_t entries) {
    const Entries<float, Index> sent = many.entries(entries);
    const Entries<float, Index> result = delivered.entries(entries);
    return nanoseconds_each(kElements, [&] {
      static_cast<void>(representable<float, float, Index>(result, 1.0F));
      commit<float, float, Index>(Segments<float>(tensor.data()), residual.data(), kElements,
                                  {.own = sent, .result = result, .dropped = {&sent, 1}}, 1.0F);
    });
  };
  costs.commit = committing_time(0);
  costs.apply =
      of_each_entry(committing_time(kManySelected), costs.commit, kElements, 3 * kManySelected);

  std::vector<float> acc(kElements);
  costs.gather = nanoseconds_each(kElements, [&] {
    static_cast<void>(accumulate<float, float>(Segments<const float>(tensor.data()),
                                               residual.data(), acc.data(), kElements));
  });
  costs.settle = nanoseconds_each(kElements, [&] {
    static_cast<void>(all_representable<float, float>(acc.data(), kElements, 1.0F));
    commit_whole<float, float>(Segments<float>(tensor.data()), residual.data(), acc.data(),
                               kElements, 1.0F);
  });

  // Processor time was measured, but an exchange takes as long as the ranks wait for it.
  const double factor = crowding.factor();
  for (const NamedCost& each : kArithmeticCosts) {
    costs.*each.cost *= factor;
  }
}

}  // namespace gtopk::sparse
