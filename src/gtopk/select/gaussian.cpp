// Sparse, select: the row of `gaussian`: a threshold from mean and deviation of acc, which assumes
// a normal distribution and is corrected if acc has another one.
//
// Shi et al., "Understanding Top-k Sparsification in Distributed Deep Learning", arXiv 1911.08772,
// Alg. 1 (Gaussian-k): t = mean + deviation * z, where z is the two-sided normal quantile of k/d;
// at most three times t is halved for fewer than 2k/3 entries or multiplied by 1.5 for more than
// 4k/3.
#include <cmath>

#include "src/gtopk/select/correction.hpp"
#include "src/gtopk/select/moments.hpp"
#include "src/gtopk/select/selector.hpp"
#include "src/gtopk/select/threshold_search.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

/// Finds the z at which erfc(z / sqrt(2)), the share of a normal distribution beyond z on both
/// sides, falls below `share`. It takes 64 bisections of [0, 40], which covers every share a double
/// can express.
double two_sided_quantile(double share) {
  double low = 0;
  double high = 40;
  for (int halving = 0; halving < 64; ++halving) {
    const double middle = (low + high) / 2;
    if (std::erfc(middle / std::sqrt(2.0)) < share) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return low;
}

double quantile_of(std::uint64_t d, std::uint64_t k) {
  return two_sided_quantile(static_cast<double>(k) / static_cast<double>(d));
}

template <class T>
double threshold_of_deviation(const SelectionInput& input) {
  const Moments sums =
      moments<T>(Segments<T>(input.tensor), static_cast<const Accumulation<T>*>(input.residual),
                 static_cast<std::size_t>(input.d));
  return normal_threshold(sums.sum, sums.squares, input.d, quantile_of(input.d, input.k));
}

Selection gaussian_select(const SelectionInput& input, const List& out, SelectScratch& scratch) {
  const KeepDenormals guard;
  return visit_selection(input, [&]<class T, class Index>() -> Selection {
    if (input.d == 0) {
      return {};
    }
    ThresholdSearch<T, Index> search(input, scratch);
    if (!search.search(threshold_of_deviation<T>(input), kGaussianCorrection)) {
      return {.finite = false};
    }
    const auto output = out.output<Accumulation<T>, Index>();
    // A rank that found nothing might never find anything again.
    return search.count() == 0 ? search.exact(output) : search.reaching(output);
  });
}

std::optional<SelectionRule> gaussian_on_device(std::uint64_t d, std::uint64_t k,
                                                const SparseOptions& /*options*/) {
  return SelectionRule{.kind = SelectionRule::Kind::kNormal,
                       .k = k,
                       .most = four_thirds(d, k),
                       .quantile = quantile_of(d, k)};
}

}  // namespace

const SelectorRow kGaussian{
    .name = "gaussian",
    .description =
        "entries from the normal quantile of mean and deviation up, corrected three times "
        "at most; up to 4k/3",
    .select = gaussian_select,
    .most = four_thirds,
    .on_device = gaussian_on_device};

}  // namespace gtopk::sparse
