// Sparse, select: the sample reads whole cache lines (a line costs as much as one element of it),
// one from each of as many equal strata, at a position chosen by a hash, because a fixed stride
// could hit the same column of a weight matrix in every row.
#include "src/gtopk/select/sample.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "src/gtopk/value/kth_key.hpp"

namespace gtopk::sparse {
namespace {

/// The target number of sampled elements that belong to the selection. It gives 7 % standard
/// deviation if they are isolated. Each line of the sample costs as much as about ten surplus
/// candidates.
constexpr double kHitsOfSample = 192;

/// Returns a rank that aims above k by a quarter and four deviations, because each surplus
/// candidate costs nanoseconds, while too few candidates cost a second sweep. Gradients cluster, so
/// the binomial deviation alone is too small.
[[nodiscard]] std::size_t cautious_rank(double expected_hits) {
  return static_cast<std::size_t>(1.25 * expected_hits + 4 * std::sqrt(expected_hits) + 8);
}

[[nodiscard]] std::uint64_t scrambled(std::uint64_t value) {
  value *= 0x9E3779B97F4A7C15U;
  value ^= value >> 32U;
  value *= 0xD6E8FEB86659FD93U;
  return value ^ (value >> 32U);
}

}  // namespace

template <class T>
Key<Accumulation<T>> sampled_threshold(Segments<const T> gradient, const Accumulation<T>* residual,
                                       std::size_t d, std::size_t k, GrowingBuffer& keys) {
  using Value = Accumulation<T>;
  constexpr std::size_t kLine = 64 / sizeof(T);
  constexpr std::size_t kFewestLines = 256;
  constexpr std::size_t kSparsest = 32;  // the sample has at most every 32nd line
  constexpr std::size_t kAhead = 16;     // how many lines ahead to prefetch

  const double density = static_cast<double>(k) / static_cast<double>(d);
  const std::size_t all_lines = d / kLine;
  const std::size_t lines =
      std::min(std::max(static_cast<std::size_t>(kHitsOfSample / density) / kLine, kFewestLines),
               all_lines / kSparsest);
  const std::size_t size = lines * kLine;
  const std::size_t rank = cautious_rank(static_cast<double>(size) * density);
  if (rank >= size) {
    return 1;
  }
  const std::size_t stratum = all_lines / lines;
  const auto place = [&](std::size_t line) {
    return (line * stratum + scrambled(line) % stratum) * kLine;
  };
  auto* sample = keys.template array<Key<Value>>(size);
  SegmentCursor<const T> here(gradient);
  SegmentCursor<const T> there(gradient);
  for (std::size_t line = 0; line < lines; ++line) {
    const std::size_t ahead = place(std::min(line + kAhead, lines - 1));
    there.go_to(ahead);
    __builtin_prefetch(there.at(ahead));
    if (residual != nullptr) {
      __builtin_prefetch(residual + ahead);
    }
    // A line may span several segments.
    const std::size_t to = place(line) + kLine;
    for (std::size_t from = place(line); from < to;) {
      here.go_to(from);
      const T* const elements = here.at(from);
      const std::size_t count = std::min(here.end(), to) - from;
      auto* const out = sample + line * kLine + (from + kLine - to);
      for (std::size_t i = 0; i < count; ++i) {
        const Value before = residual == nullptr ? Value{0} : residual[from + i];
        out[i] = magnitude_key(accumulate_one(elements[i], before));
      }
      from += count;
    }
  }
  const Key<Value> guess = kth_largest(sample, size, rank).key;
  return std::clamp<Key<Value>>(guess, 1, MagnitudeKey<Value>::kInfinity);
}

template Key<float> sampled_threshold(Segments<const float>, const float*, std::size_t, std::size_t,
                                      GrowingBuffer&);
template Key<double> sampled_threshold(Segments<const double>, const double*, std::size_t,
                                       std::size_t, GrowingBuffer&);
template Key<float> sampled_threshold(Segments<const Bfloat16>, const float*, std::size_t,
                                      std::size_t, GrowingBuffer&);
template Key<float> sampled_threshold(Segments<const Float16>, const float*, std::size_t,
                                      std::size_t, GrowingBuffer&);

}  // namespace gtopk::sparse
