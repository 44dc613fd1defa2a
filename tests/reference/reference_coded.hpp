// Reference: `dense` on a wire that codes blocks of values. Part of the reference; nothing else
// includes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/reference/reference_parts.hpp"

namespace gtopk::reference {

/// Whether `dense` is coded on that wire.
inline bool codes_blocks(const std::string& wire) {
  return wire == "bf16" || wire == "fp16" || wire == "int8" || wire == "4bit" || wire == "2bit" ||
         wire == "ternary" || wire == "sign";
}

/// What a wire has of a block: zeros are +0, all is NaN if anything is not finite.
template <class Value>
std::vector<Value> coded_block(const std::string& wire, const std::vector<Value>& block) {
  const auto finite = [](Value value) { return std::isfinite(value); };
  const bool zeros =
      std::all_of(block.begin(), block.end(), [](Value value) { return value == Value{0}; });
  std::vector<Value> coded(block.size());
  if (zeros) {
    return coded;
  }
  if (std::all_of(block.begin(), block.end(), finite)) {
    if (wire == "2bit" || wire == "sign") {
      coded = signed_means(block, wire == "2bit");
    } else if (wire == "ternary") {
      coded = ternary_levels(block);
    } else if (wire == "int8") {
      coded = multiples(block);
    } else if (wire == "4bit") {
      coded = sixteen_levels(block);
    } else {
      std::transform(block.begin(), block.end(), coded.begin(),
                     [&](Value value) { return on_wire(wire, value); });
    }
  } else {
    coded.front() = std::numeric_limits<Value>::quiet_NaN();
  }
  const bool is_finite = std::all_of(coded.begin(), coded.end(), finite);
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (!is_finite) {
      coded[i] = std::numeric_limits<Value>::quiet_NaN();
    } else if (coded[i] == Value{0}) {
      coded[i] = Value{0};
    } else if (block[i] == Value{0}) {
      coded[i] = std::fabs(coded[i]);
    }
  }
  return coded;
}

/// What a wire has of a part of a vector that begins with a block.
template <class Value>
std::vector<Value> coded_part(const std::string& wire, const std::vector<Value>& values) {
  const std::size_t block = block_of(wire);
  std::vector<Value> coded;
  for (std::size_t begin = 0; begin < values.size(); begin += block) {
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto length = static_cast<std::ptrdiff_t>(std::min(block, values.size() - begin));
    const std::vector<Value> one = coded_block(wire, std::vector<Value>(first, first + length));
    coded.insert(coded.end(), one.begin(), one.end());
  }
  return coded;
}

/// The sums of all acc, of which each becomes what remains of it in that rank's residual. NaN where
/// a sum or such a rest is not finite.
template <class Value>
Entries<Value> coded_sums(std::vector<std::vector<Value>>& accs, std::uint64_t d,
                          const std::string& wire) {
  const std::uint64_t block = block_of(wire);
  const std::uint64_t blocks = (d + block - 1) / block;
  const std::uint64_t ranks = accs.size();
  Entries<Value> sums;
  for (std::uint64_t owner = 0; owner < ranks; ++owner) {
    const std::uint64_t begin = std::min(d, owner * blocks / ranks * block);
    const std::uint64_t end = std::min(d, (owner + 1) * blocks / ranks * block);
    std::vector<Value> sum;
    for (std::vector<Value>& acc : accs) {
      const std::vector<Value> sent =
          coded_part(wire, std::vector<Value>(acc.begin() + static_cast<std::ptrdiff_t>(begin),
                                              acc.begin() + static_cast<std::ptrdiff_t>(end)));
      for (std::uint64_t i = begin; i < end; ++i) {
        acc[i] -= sent[i - begin];
      }
      const bool is_first = &acc == &accs.front();
      for (std::uint64_t i = 0; i < end - begin; ++i) {
        is_first ? sum.push_back(sent[i]) : static_cast<void>(sum[i] += sent[i]);
      }
    }
    const std::vector<Value> result = coded_part(wire, sum);
    for (std::uint64_t i = begin; i < end; ++i) {
      accs[owner][i] += sum[i - begin] - result[i - begin];
      sums[i] = std::isfinite(accs[owner][i]) ? result[i - begin]
                                              : std::numeric_limits<Value>::quiet_NaN();
    }
  }
  return sums;
}

}  // namespace gtopk::reference
