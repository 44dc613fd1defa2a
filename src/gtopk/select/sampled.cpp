// Sparse, select: the row of `sampled`: a threshold from the largest elements of a strided sample
// of acc, corrected according to the number of entries found.
//
// Lin et al., "Deep Gradient Compression", arXiv 1712.01887, section 3 and the authors' code: the
// top of a sample of 1 % gives the threshold; up to ten times it is multiplied by 0.8 for fewer
// than 0.8 k entries or by 1.3 for more than 1.3 k. Their sample starts at a random element; this
// one starts at the first, so that a step can be repeated.
#include <algorithm>
#include <cmath>

#include "src/gtopk/select/correction.hpp"
#include "src/gtopk/select/selector.hpp"
#include "src/gtopk/select/threshold_search.hpp"
#include "src/gtopk/value/kth_key.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

/// The sample has every 101st element, about 1 %. 101 is prime, so it seldom divides the row length
/// of a weight matrix. A small selection uses a finer sample, so that about eight of its entries
/// are sampled.
constexpr std::uint64_t kStride = 101;
constexpr std::uint64_t kWantedHits = 8;

std::uint64_t stride_of(std::uint64_t k) { return std::min(kStride, k / kWantedHits); }
std::uint64_t sample_size(std::uint64_t d, std::uint64_t stride) {
  return (d + stride - 1) / stride;
}

/// The rank, from 1 on, of the sampled element whose magnitude is the threshold.
std::uint64_t rank_in_sample(std::uint64_t d, std::uint64_t k, std::uint64_t size) {
  const double share = static_cast<double>(k) / static_cast<double>(d);
  const double wanted = std::floor(share * static_cast<double>(size) + 0.5);
  return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, size);
}

/// Returns the magnitude that the sample's share of k elements reach; 0 if too few are nonzero.
template <class T>
double threshold_of_sample(const SelectionInput& input, std::size_t stride, GrowingBuffer& keys) {
  using Value = Accumulation<T>;
  constexpr std::size_t kAhead = 16;  // how many samples ahead to prefetch
  const auto d = static_cast<std::size_t>(input.d);
  const Segments<const T> gradient(Segments<T>(input.tensor));
  const auto* const residual = static_cast<const Value*>(input.residual);
  const auto size = static_cast<std::size_t>(sample_size(d, stride));
  auto* const sample = keys.array<Key<Value>>(size);
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
  const auto rank = static_cast<std::size_t>(rank_in_sample(input.d, input.k, size));
  return magnitude_of<Value>(kth_largest(sample, size, rank).key);
}

Selection sampled_select(const SelectionInput& input, const List& out, SelectScratch& scratch) {
  const KeepDenormals guard;
  return visit_selection(input, [&]<class T, class Index>() -> Selection {
    const auto output = out.output<Accumulation<T>, Index>();
    const std::uint64_t stride = stride_of(input.k);
    if (stride <= 1) {
      return select_exact<T, Accumulation<T>, Index>(
          Segments<T>(input.tensor), static_cast<const Accumulation<T>*>(input.residual), input.d,
          input.k, output, scratch);
    }
    const double threshold =
        threshold_of_sample<T>(input, static_cast<std::size_t>(stride), scratch.keys);
    ThresholdSearch<T, Index> search(input, scratch);
    if (!search.search(threshold, kSampledCorrection)) {
      return {.finite = false};
    }
    return search.count() == 0 ? search.exact(output) : search.reaching(output);
  });
}

std::optional<SelectionRule> sampled_on_device(std::uint64_t d, std::uint64_t k,
                                               const SparseOptions& /*options*/) {
  const std::uint64_t stride = stride_of(k);
  if (stride <= 1) {
    return SelectionRule{.k = k, .most = k};
  }
  return SelectionRule{.kind = SelectionRule::Kind::kSample,
                       .k = k,
                       .most = four_thirds(d, k),
                       .stride = stride,
                       .rank = rank_in_sample(d, k, sample_size(d, stride))};
}

}  // namespace

const SelectorRow kSampled{
    .name = "sampled",
    .description =
        "entries from the top of a strided sample of 1 % up, corrected ten times at most; "
        "up to 4k/3",
    .select = sampled_select,
    .most = four_thirds,
    .on_device = sampled_on_device};

}  // namespace gtopk::sparse
