// Reference: the words of docs/algorithms.md that several algorithms of the reference share:
// selections, their sums, the shape of the tree. Part of the reference; nothing else includes it.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/reference/reference.hpp"
#include "tests/reference/reference_selectors.hpp"

namespace gtopk::reference {

/// The sums of two lists; an index of one of them keeps its value.
template <class Value>
Entries<Value> united(const Entries<Value>& left, const Entries<Value>& right) {
  Entries<Value> sums = left;
  for (const auto& [index, value] : right) {
    const auto [place, is_new] = sums.emplace(index, value);
    if (!is_new) {
      place->second = place->second + value;
    }
  }
  return sums;
}

template <class Value>
bool all_finite(const Entries<Value>& entries) {
  return std::all_of(entries.begin(), entries.end(),
                     [](const auto& entry) { return std::isfinite(entry.second); });
}

/// What a wire has of a value: bf16 and fp16.
template <class Value>
Value on_wire(const std::string& wire, Value value) {
  if (wire == "bf16") {
    return static_cast<Value>(rounded(DataType::kBfloat16, static_cast<float>(value)));
  }
  if (wire == "fp16") {
    const Value most = 65504;
    const auto clamped = static_cast<float>(std::clamp(value, -most, most));
    return static_cast<Value>(rounded(DataType::kFloat16, clamped));
  }
  return value;
}

/// What int8 has of the entries of a block: multiples of the least power of two of which the
/// largest is at most 127.
template <class Value>
std::vector<Value> multiples(const std::vector<Value>& values) {
  long double largest = 0;
  for (const Value value : values) {
    largest = std::max(largest, fabsl(value));
  }
  long double unit = 1;
  while (largest > 127 * unit) {
    unit *= 2;
  }
  while (largest != 0 && largest <= 127 * unit / 2) {
    unit /= 2;
  }
  std::vector<Value> rounded;
  for (const Value value : values) {
    rounded.push_back(static_cast<Value>(nearbyintl(value / unit) * unit));
  }
  return rounded;
}

/// What 4bit has of the entries of a block: levels, multiples of a unit that has the sign of the
/// entry of largest magnitude, which is 127 of it.
template <class Value>
std::vector<Value> sixteen_levels(const std::vector<Value>& values) {
  constexpr bool is_double = std::is_same_v<Value, double>;
  const std::vector<int> levels = {-110, -85, -65, -48, -34, -21, -10, 0,
                                   10,   20,  31,  45,  60,  79,  100, 127};
  Value most = 0;
  Value least = 0;
  for (const Value value : values) {
    most = std::max(most, value);
    least = std::min(least, value);
  }
  const Value largest = std::max(most, -least);
  const Value smallest_unit = std::numeric_limits<Value>::min();
  Value unit = smallest_unit;
  if (largest >= 127 * smallest_unit) {
    int exponent = 0;
    const int bits = is_double ? 21 : 8;
    const Value fraction = std::frexp(largest / 127, &exponent);
    unit = std::ldexp(std::floor(std::ldexp(fraction, bits)), exponent - bits);
    unit = most < -least ? -unit : unit;
  }
  std::vector<Value> rounded;
  for (const Value value : values) {
    const Value units = std::nearbyint(value * (1 / unit));
    int nearest = levels.front();
    for (const int level : levels) {
      const Value apart = std::fabs(level - units) - std::fabs(nearest - units);
      if (apart < 0 || (apart == 0 && std::abs(level) < std::abs(nearest))) {
        nearest = level;
      }
    }
    rounded.push_back(nearest == 0 ? Value{0} : static_cast<Value>(nearest) * unit);
  }
  return rounded;
}

/// The mean of magnitudes that lie in [least, most]: summed in order, in double, of their 2^-9
/// where that would overflow.
inline double mean_of(const std::vector<double>& magnitudes, double least, double most) {
  const auto mean_by = [&](double scale) {
    double sum = 0;
    for (const double magnitude : magnitudes) {
      sum += magnitude / scale;
    }
    return sum / static_cast<double>(magnitudes.size()) * scale;
  };
  const double mean = std::isfinite(mean_by(1)) ? mean_by(1) : mean_by(0x1p9);
  return std::min(std::max(mean, least), most);
}

/// A scale: 24 bits of a mean, cut.
template <class Value>
Value scale_of(double mean) {
  double unit = std::numeric_limits<double>::denorm_min();
  while (mean / unit >= 0x1p24) {
    unit *= 2;
  }
  return static_cast<Value>(std::floor(mean / unit) * unit);
}

/// What `sign` and `2bit` have of the entries of a block: their sign times the mean magnitude of
/// all, or of those on the same side of that mean.
template <class Value>
std::vector<Value> signed_means(const std::vector<Value>& block, bool two_means) {
  std::vector<double> all;
  for (const Value value : block) {
    all.push_back(std::fabs(value));
  }
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  const double mean = mean_of(all, *least, *most);
  std::vector<double> low;
  std::vector<double> high;
  for (const double magnitude : all) {
    (two_means && magnitude > mean ? high : low).push_back(magnitude);
  }
  const Value scale_low = scale_of<Value>(two_means ? mean_of(low, *least, mean) : mean);
  const Value scale_high = high.empty() ? Value{0} : scale_of<Value>(mean_of(high, mean, *most));
  std::vector<Value> rounded;
  for (const Value value : block) {
    const Value scale = two_means && std::fabs(value) > mean ? scale_high : scale_low;
    rounded.push_back(std::signbit(value) ? -scale : scale);
  }
  return rounded;
}

/// Upper half of a value's bits, and zeros.
template <class Value>
Value upper_half(Value value) {
  if constexpr (sizeof(Value) == sizeof(double)) {
    return std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) >> 32 << 32);
  } else {
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) >> 16 << 16);
  }
}

/// What `ternary` has of a block of a dense vector that is not all zeros: of magnitudes above the
/// mean their mean, of others 0; of equal magnitudes all of them.
template <class Value>
std::vector<Value> ternary_levels(const std::vector<Value>& block) {
  std::vector<double> all;
  for (const Value value : block) {
    all.push_back(std::fabs(value));
  }
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  const double mean = mean_of(all, *least, *most);
  std::vector<double> high;
  std::copy_if(all.begin(), all.end(), std::back_inserter(high),
               [&](double magnitude) { return magnitude > mean; });
  const Value level = upper_half(scale_of<Value>(high.empty() ? mean : mean_of(high, mean, *most)));
  std::vector<Value> levels;
  for (const Value value : block) {
    const bool is_sent = high.empty() || std::fabs(value) > mean;
    levels.push_back(is_sent ? std::copysign(level, value) : Value{0});
  }
  return levels;
}

/// Elements of a block of a dense vector.
inline std::size_t block_of(const std::string& wire) {
  return wire == "4bit" ? 64 : wire == "ternary" ? 320 : 256;
}

/// What a wire has of a list's values: of int8 and 4bit in blocks, each as long as leaves 256 or 64
/// entries.
template <class Value>
std::vector<Value> on_wire(const std::string& wire, const std::vector<Value>& values) {
  std::vector<Value> all;
  if (wire == "2bit" || wire == "ternary" || wire == "sign") {
    for (std::size_t begin = 0; begin < values.size(); begin += 256) {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto length = std::min<std::size_t>(256, values.size() - begin);
      const std::vector<Value> kept = signed_means(
          std::vector<Value>(first, first + static_cast<std::ptrdiff_t>(length)), wire == "2bit");
      all.insert(all.end(), kept.begin(), kept.end());
    }
    return all;
  }
  if (wire != "int8" && wire != "4bit") {
    for (const Value value : values) {
      all.push_back(on_wire(wire, value));
    }
    return all;
  }
  auto* const in_block = wire == "int8" ? multiples<Value> : sixteen_levels<Value>;
  const std::size_t entries = wire == "int8" ? 256 : 64;
  std::vector<Value> block;
  for (const Value value : values) {
    block.push_back(value);
    const std::vector<Value> kept = in_block(block);
    const auto zeros = static_cast<std::size_t>(std::count(kept.begin(), kept.end(), Value{0}));
    if (kept.size() - zeros == entries) {
      all.insert(all.end(), kept.begin(), kept.end());
      block.clear();
    }
  }
  const std::vector<Value> kept = in_block(block);
  all.insert(all.end(), kept.begin(), kept.end());
  return all;
}

/// What a node of the tree dropped, or rounding lost, and the rank that keeps it.
template <class Value>
struct Dropped {
  std::uint32_t rank = 0;
  std::uint64_t index = 0;
  Value value = 0;
};

/// How many ranks have sent each index of a merged list, where that matters; empty for a rank's own
/// selection.
using Senders = Entries<std::uint32_t>;

/// The same of two lists that are merged.
template <class Value>
Senders merged_senders(const SparseOptions& options, const Entries<Value>& left,
                       const Senders& of_left, const Entries<Value>& right,
                       const Senders& of_right) {
  if (options.mean == MeanOver::kRanks) {
    return {};
  }
  const auto senders = [](const Entries<Value>& list, const Senders& known) {
    Senders all = known;
    for (const auto& [index, value] : list) {
      all.emplace(index, 1);
    }
    return all;
  };
  return united(senders(left, of_left), senders(right, of_right));
}

/// Bytes of the senders of a list: a parameter for each 256 of them, of each number what is beyond
/// 1 as so many low bits and a unary rest.
inline std::uint64_t bytes_of(const Senders& senders) {
  std::vector<std::uint64_t> numbers;
  for (const auto& [index, number] : senders) {
    numbers.push_back(number);
  }
  std::uint64_t blocks = 0;
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  for (std::size_t begin = 0; begin < numbers.size(); begin += 256, ++blocks) {
    const std::size_t end = std::min<std::size_t>(numbers.size(), begin + 256);
    std::uint64_t sum = 0;
    for (std::size_t i = begin; i < end; ++i) {
      sum += numbers[i];
    }
    std::uint64_t mean = (sum - (end - begin) / 2) / (end - begin);
    std::uint64_t bits = 0;
    for (; mean > 1; mean /= 2) {
      ++bits;
    }
    for (std::size_t i = begin; i < end; ++i) {
      low += bits;
      high += ((numbers[i] - 1) >> bits) + 1;
    }
  }
  return blocks + (low + 7) / 8 + (high + 7) / 8;
}

/// A subtree: the ranks in it are those of `leaves` consecutive leaves, from `leaf` on.
template <class Value>
struct Subtree {
  std::uint32_t lowest_rank = 0;
  Entries<Value> entries;
  Senders senders{};
};

template <class Value>
struct TreeResult {
  Entries<Value> root;
  Senders senders{};
  std::vector<Dropped<Value>> dropped;  ///< leaf to root
  std::vector<Lists> lists;
  bool finite = true;
};

/// The shape of the tree, from P alone.
struct Shape {
  explicit Shape(std::uint32_t ranks) : leaves(1) {
    while (2 * leaves <= ranks) {
      leaves *= 2;
    }
    folded = ranks - leaves;
  }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t leaf) const {
    return leaf < folded ? 2 * leaf : leaf + folded;
  }
  std::uint32_t leaves;  ///< p
  std::uint32_t folded;  ///< r: ranks 2j and 2j + 1, j < r, share leaf j
};

/// Who sends the list of which size to whom, next to the arithmetic.
inline void count(std::vector<Lists>& lists, std::uint32_t from, std::uint32_t to,
                  std::uint64_t entries, std::uint64_t count_bytes = 0) {
  lists[from].sent.push_back(entries);
  lists[to].received.push_back(entries);
  lists[from].counts_sent.push_back(count_bytes);
  lists[to].counts_received.push_back(count_bytes);
}

/// Rounds a list as the wire does. What is lost of an entry goes to the rank, but for a selection's
/// entry that becomes zero: it is not sent at all.
template <class Value>
void round(Entries<Value>& entries, std::uint32_t rank, bool selection,
           const SparseOptions& options, TreeResult<Value>& result) {
  if (options.wire != "bf16" && options.wire != "fp16" && options.wire != "int8" &&
      options.wire != "4bit" && options.wire != "2bit" && options.wire != "ternary" &&
      options.wire != "sign") {
    return;
  }
  std::vector<Value> values;
  for (const auto& [index, value] : entries) {
    values.push_back(value);
  }
  const std::vector<Value> on_the_wire = on_wire(options.wire, values);
  auto next = on_the_wire.begin();
  for (auto entry = entries.begin(); entry != entries.end();) {
    const Value kept = *next++;
    const Value lost = entry->second - kept;
    result.finite = result.finite && std::isfinite(kept);
    if (lost != Value{0} && !(selection && kept == Value{0})) {
      result.dropped.push_back({rank, entry->first, lost});
    }
    entry->second = kept;
    entry = kept == Value{0} ? entries.erase(entry) : std::next(entry);
  }
}

/// Keeps the first `most` of a node's sums in the selection order; the others are dropped there.
template <class Value>
void reselect(Entries<Value>& node, std::uint64_t most, std::uint32_t rank,
              std::vector<Dropped<Value>>& dropped) {
  const auto sorted = in_order(node);
  node.clear();
  for (std::size_t place = 0; place < sorted.size(); ++place) {
    const auto& [index, value] = sorted[place];
    if (place < most) {
      node[index] = value;
    } else {
      dropped.push_back({rank, index, value});
    }
  }
}

/// The entries with indices in [begin, end).
template <class Value>
Entries<Value> within(const Entries<Value>& entries, std::uint64_t begin, std::uint64_t end) {
  return {entries.lower_bound(begin), entries.lower_bound(end)};
}

/// The same by a call's options: under `block` every block keeps its own first entries, whatever
/// `most` says.
template <class Value>
void reselect(Entries<Value>& node, const SparseOptions& options, std::uint64_t d,
              std::uint64_t most, std::uint32_t rank, std::vector<Dropped<Value>>& dropped) {
  if (options.selector != "block") {
    reselect(node, most, rank, dropped);
    return;
  }
  Entries<Value> kept;
  for (std::uint64_t begin = 0; begin < d; begin += options.block) {
    const std::uint64_t end = std::min(d, begin + options.block);
    Entries<Value> block = within(node, begin, end);
    reselect(block, entries_of_block(options, end - begin), rank, dropped);
    kept.merge(block);
  }
  node = kept;
}

}  // namespace gtopk::reference
