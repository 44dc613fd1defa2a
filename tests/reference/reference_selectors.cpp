// Reference: the selectors, top to bottom in the order of docs/algorithms.md.
#include "tests/reference/reference_selectors.hpp"

#include <algorithm>
#include <cmath>

namespace gtopk::reference {
namespace {

template <class Value>
bool comes_before(const std::pair<std::uint64_t, Value>& left,
                  const std::pair<std::uint64_t, Value>& right) {
  if (std::fabs(left.second) != std::fabs(right.second)) {
    return std::fabs(left.second) > std::fabs(right.second);
  }
  return left.first < right.first;
}

template <class Value>
Entries<Value> numbered(const std::vector<Value>& acc, std::uint64_t begin, std::uint64_t end) {
  Entries<Value> entries;
  for (std::uint64_t i = begin; i < end; ++i) {
    entries[i] = acc[i];
  }
  return entries;
}

template <class Value>
Entries<Value> first(const Entries<Value>& entries, std::uint64_t k) {
  Entries<Value> selection;
  for (const auto& [index, value] : in_order(entries)) {
    if (selection.size() == k) {
      break;
    }
    selection[index] = value;
  }
  return selection;
}

/// min(d, max(1, floor(density d + 1/2))), or 0 if d is 0.
std::uint64_t share_of(std::uint64_t d, double density) {
  const double rounded = std::floor(density * static_cast<double>(d) + 0.5);
  return std::min(d, std::max<std::uint64_t>(1, static_cast<std::uint64_t>(rounded)));
}

/// All non-zero entries with a magnitude of at least `threshold`.
template <class Value>
Entries<Value> reaching(const std::vector<Value>& acc, double threshold) {
  Entries<Value> entries;
  for (std::uint64_t i = 0; i < acc.size(); ++i) {
    if (acc[i] != 0 && static_cast<double>(std::fabs(acc[i])) >= threshold) {
      entries[i] = acc[i];
    }
  }
  return entries;
}

/// ceil(4k/3), at most d.
std::uint64_t most(std::uint64_t d, std::uint64_t k) { return std::min(d, (4 * k + 2) / 3); }

/// Half of the partial sums are added to the other half, until one is left.
template <std::size_t Count>
double folded(std::array<double, Count> partials) {
  for (std::size_t width = Count / 2; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) {
      partials.at(j) += partials.at(j + width);
    }
  }
  return partials[0];
}

/// Sum and sum of squares, in the order that docs/algorithms.md gives.
template <class Value>
std::array<double, 2> moments(const std::vector<Value>& acc) {
  std::array<std::array<double, 256>, 2> sums{};
  for (std::size_t chunk = 0; chunk * 4096 < acc.size(); ++chunk) {
    std::array<std::array<double, 16>, 2> partials{};
    for (std::size_t i = chunk * 4096; i < std::min(acc.size(), (chunk + 1) * 4096); ++i) {
      const double value = acc[i];
      partials[0].at(i % 16) += value;
      partials[1].at(i % 16) += value * value;
    }
    sums[0].at(chunk % 256) += folded(partials[0]);
    sums[1].at(chunk % 256) += folded(partials[1]);
  }
  return {folded(sums[0]), folded(sums[1])};
}

template <class Value>
Entries<Value> gaussian(const std::vector<Value>& acc, std::uint64_t k) {
  const auto d = static_cast<double>(acc.size());
  const auto [sum, squares] = moments(acc);
  const double mean = sum / d;
  const double variance = squares / d - mean * mean;
  double low = 0;
  double high = 40;
  for (int halving = 0; halving < 64; ++halving) {
    const double z = (low + high) / 2;
    double& bound = std::erfc(z / std::sqrt(2.0)) < static_cast<double>(k) / d ? high : low;
    bound = z;
  }
  double threshold = mean + (variance > 0 ? std::sqrt(variance) : 0) * low;
  for (int correction = 0; correction < 3; ++correction) {
    const std::uint64_t count = reaching(acc, threshold).size();
    if (3 * count < 2 * k) {
      threshold *= 0.5;
    } else if (3 * count > 4 * k) {
      threshold *= 1.5;
    } else {
      break;
    }
  }
  const Entries<Value> found = reaching(acc, threshold);
  return found.empty() ? first(numbered(acc, 0, acc.size()), k) : first(found, most(acc.size(), k));
}

template <class Value>
Entries<Value> sampled(const std::vector<Value>& acc, std::uint64_t k) {
  const std::uint64_t stride = std::min<std::uint64_t>(101, k / 8);
  if (stride <= 1) {
    return first(numbered(acc, 0, acc.size()), k);
  }
  std::vector<double> sample;
  for (std::uint64_t i = 0; i < acc.size(); i += stride) {
    sample.push_back(std::fabs(acc[i]));
  }
  std::sort(sample.rbegin(), sample.rend());
  const double share = static_cast<double>(k) / static_cast<double>(acc.size());
  const double wanted = std::floor(share * static_cast<double>(sample.size()) + 0.5);
  const auto rank = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, sample.size());
  double threshold = sample[rank - 1];
  for (int correction = 0; correction < 10; ++correction) {
    const std::uint64_t count = reaching(acc, threshold).size();
    if (10 * count < 8 * k) {
      threshold *= 0.8;
    } else if (10 * count > 13 * k) {
      threshold *= 1.3;
    } else {
      break;
    }
  }
  const Entries<Value> found = reaching(acc, threshold);
  return found.empty() ? first(numbered(acc, 0, acc.size()), k) : first(found, most(acc.size(), k));
}

template <class Value>
Entries<Value> threshold(const std::vector<Value>& acc, std::uint64_t k, SelectorState& state) {
  double last = state.numbers[0];
  if (std::isfinite(last) && last > 0) {
    for (int tried = 0; tried < 9; ++tried) {
      const Entries<Value> found = reaching(acc, last);
      const bool few = 3 * found.size() < 2 * k;
      if (!few && 3 * found.size() <= 4 * k) {
        state = {.numbers = {last}};
        return found;
      }
      last *= few ? 0.975 : 1.025;
    }
  }
  const Entries<Value> exact = first(numbered(acc, 0, acc.size()), k);
  state = {};
  if (exact.size() == k && k != 0) {
    state.numbers[0] = std::fabs(static_cast<double>(in_order(exact).back().second));
  }
  return exact;
}

template <class Value>
Entries<Value> block(const std::vector<Value>& acc, const SparseOptions& options) {
  Entries<Value> selection;
  for (std::uint64_t begin = 0; begin < acc.size(); begin += options.block) {
    const std::uint64_t end = std::min<std::uint64_t>(acc.size(), begin + options.block);
    selection.merge(first(numbered(acc, begin, end), entries_of_block(options, end - begin)));
  }
  return selection;
}

}  // namespace

template <class Value>
std::vector<std::pair<std::uint64_t, Value>> in_order(const Entries<Value>& entries) {
  std::vector<std::pair<std::uint64_t, Value>> sorted;
  for (const auto& [index, value] : entries) {
    if (value != Value{0}) {
      sorted.emplace_back(index, value);
    }
  }
  std::sort(sorted.begin(), sorted.end(), comes_before<Value>);
  return sorted;
}

template <class Value>
Entries<Value> select(const std::vector<Value>& acc, const SparseOptions& options,
                      SelectorState& state) {
  const std::uint64_t d = acc.size();
  if (d == 0) {
    return {};
  }
  if (options.selector == "block") {
    return block(acc, options);
  }
  const std::uint64_t k = entries_wanted(options, d);
  if (options.selector == "gaussian") {
    return gaussian(acc, k);
  }
  if (options.selector == "sampled") {
    return sampled(acc, k);
  }
  if (options.selector == "threshold") {
    return threshold(acc, k, state);
  }
  return first(numbered(acc, 0, d), k);
}

template std::vector<std::pair<std::uint64_t, float>> in_order(const Entries<float>&);
template std::vector<std::pair<std::uint64_t, double>> in_order(const Entries<double>&);
template Entries<float> select(const std::vector<float>&, const SparseOptions&, SelectorState&);
template Entries<double> select(const std::vector<double>&, const SparseOptions&, SelectorState&);

std::uint64_t entries_of_block(const SparseOptions& options, std::uint64_t elements) {
  return share_of(elements, options.density);
}

std::uint64_t entries_wanted(const SparseOptions& options, std::uint64_t d) {
  if (options.k != 0) {
    return std::min<std::uint64_t>(options.k, d);
  }
  const bool drawn_or_summed = options.algorithm == "random-k" || options.algorithm == "sketch" ||
                               options.algorithm == "true-topk";
  if (options.selector != "block" || drawn_or_summed) {
    return share_of(d, options.density);
  }
  std::uint64_t k = 0;
  for (std::uint64_t begin = 0; begin < d; begin += options.block) {
    k += entries_of_block(options, std::min(options.block, d - begin));
  }
  return k;
}

void choose_selector(SparseOptions& options, std::uint64_t d, const std::string& selector) {
  options.selector = selector;
  if (selector != "block") {
    return;
  }
  options.density = std::min(1.0, static_cast<double>(options.k) / static_cast<double>(d));
  options.block = 1 + d / 3;
  options.k = 0;
}

}  // namespace gtopk::reference
