// Sparse, select room: the row of `sampled`: a threshold from the largest of a strided sample of
// acc, corrected by what it finds.
//
// Lin et al., "Deep Gradient Compression", arXiv 1712.01887, section 3 and the authors' code: the
// top of a sample of 1 % gives the threshold; up to ten times it is multiplied by 0.8 for fewer
// than 0.8 k entries or by 1.3 for more than 1.3 k. Theirs starts at a random element, this one at
// the first, so that a step can be repeated.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/gtopk/select/selector.hpp"
#include "src/gtopk/select/threshold_search.hpp"
#include "src/gtopk/value/kth_key.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

/// Every 101st element, about 1 %: a prime, which seldom divides the row length of a weight matrix.
/// A small selection takes a finer sample, so that about eight of its entries are sampled.
constexpr std::uint64_t kStride = 101;
constexpr std::uint64_t kWantedHits = 8;

constexpr Correction kBounds{
    .unit = 10, .least = 8, .most = 13, .down = 0.8, .up = 1.3, .times = 10, .ahead = 0.64};

template <class Value>
double magnitude_of(Key<Value> key) {
  Value value = 0;
  std::memcpy(&value, &key, sizeof value);
  return value;
}

/// The magnitude that the sample's share of k elements reach; 0 if too few are non-zero.
template <class T>
double threshold_of_sample(const SelectionInput& input, std::size_t stride, GrowingBuffer& keys) {
  using Value = Accumulation<T>;
  constexpr std::size_t kAhead = 16;  // how many samples ahead to prefetch
  const auto d = static_cast<std::size_t>(input.d);
  const Segments<const T> gradient(Segments<T>(input.tensor));
  const auto* const residual = static_cast<const Value*>(input.residual);
  const std::size_t size = (d + stride - 1) / stride;
  auto* const sample = keys.room<Key<Value>>(size);
  SegmentCursor<const T> here(gradient);
  SegmentCursor<const T> there(gradient);
  for (std::size_t n = 0; n < size; ++n) {
    const std::size_t ahead = std::min(n + kAhead, size - 1) * stride;
    there.go_to(ahead);
    __builtin_prefetch(there.at(ahead));
    if (residual != nullptr) {
      __builtin_prefetch(residual + ahead);
    }
    const std::size_t at = n * stride;
    here.go_to(at);
    sample[n] =
        magnitude_key(accumulate_one(*here.at(at), residual == nullptr ? Value{0} : residual[at]));
  }
  const double share = static_cast<double>(input.k) / static_cast<double>(input.d);
  const double wanted = std::floor(share * static_cast<double>(size) + 0.5);
  const std::size_t rank = std::clamp<std::size_t>(static_cast<std::size_t>(wanted), 1, size);
  return magnitude_of<Value>(kth_largest(sample, size, rank).key);
}

Selection sampled_select(const SelectionInput& input, const List& out, SelectScratch& scratch) {
  const KeepDenormals guard;
  return visit_selection(input, [&]<class T, class Index>() -> Selection {
    const auto room = out.room<Accumulation<T>, Index>();
    const std::uint64_t stride = std::min(kStride, input.k / kWantedHits);
    if (stride <= 1) {
      return select_exact<T, Accumulation<T>, Index>(
          Segments<T>(input.tensor), static_cast<const Accumulation<T>*>(input.residual), input.d,
          input.k, room, scratch);
    }
    const double threshold =
        threshold_of_sample<T>(input, static_cast<std::size_t>(stride), scratch.keys);
    ThresholdSearch<T, Index> search(input, scratch);
    if (!search.search(threshold, kBounds)) {
      return {.finite = false};
    }
    return search.count() == 0 ? search.exact(room) : search.reaching(room);
  });
}

}  // namespace

const SelectorRow kSampled{
    .name = "sampled",
    .description =
        "entries from the top of a strided sample of 1 % up, corrected ten times at most; "
        "up to 4k/3",
    .select = sampled_select,
    .most = four_thirds};

}  // namespace gtopk::sparse
