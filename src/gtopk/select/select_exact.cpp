// Sparse, select: exact selection by a guessed threshold and one sweep. The guess affects time but
// never the result: a guess that is too low finds surplus candidates, which are dropped on the way;
// a guess that is too high (fewer than k found) needs a second sweep that takes all nonzero
// elements.
#include "src/gtopk/select/select_exact.hpp"

#include <algorithm>
#include <cstdint>

#include "src/gtopk/select/candidates.hpp"
#include "src/gtopk/select/sample.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

/// Up to this size, a sample costs more than it saves.
constexpr std::size_t kSmall = 32'768;

template <class T>
Key<Accumulation<T>> guess(Segments<const T> gradient, const Accumulation<T>* residual,
                           std::size_t d, std::size_t k, GrowingBuffer& keys) {
  return d <= kSmall || k >= d / 2 ? 1 : sampled_threshold(gradient, residual, d, k, keys);
}

}  // namespace

template <class T, class Value, class Index>
Selection select_exact(Segments<const T> gradient, const Value* residual, std::size_t d,
                       std::size_t k, EntriesOut<Value, Index> out, SelectScratch& scratch) {
  const KeepDenormals guard;
  k = std::min(k, d);
  Candidates<T, Index> candidates(gradient, residual, d, std::max<std::size_t>(k, 1), scratch);
  // With k = 0, nothing is selected, but non-finite values are still found.
  candidates.start(k == 0 ? MagnitudeKey<Value>::kInfinity
                          : guess(gradient, residual, d, k, scratch.keys));
  if (!candidates.sweep(0, d)) {
    return {.count = 0, .finite = false};
  }
  if (candidates.size() < k && candidates.first_threshold() > 1) {
    candidates.start(1);
    if (!candidates.sweep(0, d)) {
      return {.count = 0, .finite = false};
    }
  }
  if (candidates.size() > k) {
    (void)candidates.keep_first(k);
  }
  return {.count = candidates.write(out), .finite = true};
}

template Selection select_exact(Segments<const float>, const float*, std::size_t, std::size_t,
                                EntriesOut<float, std::uint32_t>, SelectScratch&);
template Selection select_exact(Segments<const float>, const float*, std::size_t, std::size_t,
                                EntriesOut<float, std::uint64_t>, SelectScratch&);
template Selection select_exact(Segments<const double>, const double*, std::size_t, std::size_t,
                                EntriesOut<double, std::uint32_t>, SelectScratch&);
template Selection select_exact(Segments<const double>, const double*, std::size_t, std::size_t,
                                EntriesOut<double, std::uint64_t>, SelectScratch&);
template Selection select_exact(Segments<const Bfloat16>, const float*, std::size_t, std::size_t,
                                EntriesOut<float, std::uint32_t>, SelectScratch&);
template Selection select_exact(Segments<const Bfloat16>, const float*, std::size_t, std::size_t,
                                EntriesOut<float, std::uint64_t>, SelectScratch&);
template Selection select_exact(Segments<const Float16>, const float*, std::size_t, std::size_t,
                                EntriesOut<float, std::uint32_t>, SelectScratch&);
template Selection select_exact(Segments<const Float16>, const float*, std::size_t, std::size_t,
                                EntriesOut<float, std::uint64_t>, SelectScratch&);

}  // namespace gtopk::sparse
