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

/// More than most caches hold, like gradients.
constexpr std::size_t kElements = std::size_t{1} << 20U;
constexpr std::size_t kSelected = kElements / 100;
constexpr int kRuns = 3;

/// This thread's own: computing time without waits for a core.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Processor time of the fastest run, per element of `count`.
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

/// Values in random order, of either sign, few of them large.
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

class HeapRooms final : public Rooms {
 public:
  std::span<std::byte> room(std::size_t bytes) override {
    return {rooms_.emplace_back().room<std::byte>(bytes), bytes};
  }
  void forget() { rooms_.clear(); }

 private:
  std::deque<GrowingBuffer> rooms_;
};

struct Room {
  explicit Room(std::size_t size) : indices(size), values(size) {}

  [[nodiscard]] EntriesOut<float, Index> out() { return {indices.data(), values.data()}; }
  [[nodiscard]] Entries<float, Index> entries(std::size_t size) const {
    return {indices.data(), values.data(), size};
  }

  std::vector<Index> indices;
  std::vector<float> values;
};

/// Shares some of its indices with the other list.
Room shifted(const Room& list) {
  Room other = list;
  for (std::size_t i = 0; i < kSelected; i += 2) {
    const Index next = i + 1 < kSelected ? list.indices[i + 1] : Index{kElements};
    other.indices[i] = std::min(list.indices[i] + 1, next - 1);
  }
  return other;
}

double coding(const Room& selected) {
  HeapRooms rooms;
  const EntryType type;
  const Codec& codec = kLossless.codec;
  List list = codec.make(type, kSelected, rooms);
  std::ranges::copy(selected.indices, list.room<float, Index>().indices);
  std::ranges::copy(selected.values, list.room<float, Index>().values);
  codec.close(type, list, kSelected);
  HeapRooms messages;
  return nanoseconds_each(2 * kSelected, [&] {
    messages.forget();
    const std::span<std::byte> message = codec.encode(type, list, kElements, messages);
    const List read = codec.decode(type, {kSelected, type.index_bytes, true}, message, kSelected,
                                   kElements, messages);
    static_cast<void>(read);
  });
}

/// How much longer this thread has taken since construction than it would on a core of its own:
/// ranks may outnumber their cores.
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

void measure_arithmetic(Costs& costs) {
  const Crowding crowding;
  std::vector<float> tensor = gradient();
  std::vector<float> residual(kElements);
  Room selected(kSelected);
  SelectScratch selecting;
  std::size_t count = 0;
  costs.select = nanoseconds_each(kElements, [&] {
    count = select_exact<float, float, Index>(Segments<const float>(tensor.data()), residual.data(),
                                              kElements, kSelected, selected.out(), selecting)
                .count;
  });
  costs.code = coding(selected);

  const Room other = shifted(selected);
  Room kept(2 * kSelected);
  Room dropped(2 * kSelected);
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
  costs.add = nanoseconds_each(kElements, [&] {
    collectives::reduce(residual.data(), residual.data(), tensor.data(), kElements,
                        DataType::kFloat32, ReduceOp::kSum);
  });
  costs.commit = nanoseconds_each(kElements, [&] {
    commit<float, float, Index>(Segments<float>(tensor.data()), residual.data(), kElements,
                                selected.entries(count), selected.entries(count), nullptr, 0,
                                PutBack::kOwn, 1.0F);
  });

  // Processor time was measured; an exchange takes as long as the ranks wait for it.
  const double factor = crowding.factor();
  for (double Costs::*const cost :
       {&Costs::select, &Costs::code, &Costs::merge, &Costs::unite, &Costs::add, &Costs::commit}) {
    costs.*cost *= factor;
  }
}

}  // namespace gtopk::sparse
