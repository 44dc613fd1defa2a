#include "src/gtopk/algorithms/count_sketch.hpp"

#include <algorithm>
#include <bit>

#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/keep_denormals.hpp"
#include "src/numbers/mix.hpp"

namespace gtopk::sparse {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr unsigned kBits = 61;
constexpr std::uint64_t kPrime = (std::uint64_t{1} << kBits) - 1;

// Numbers modulo kPrime. Of x and x - kPrime the smaller one is the one that has not wrapped.
std::uint64_t plus(std::uint64_t a, std::uint64_t b) { return std::min(a + b, a + b - kPrime); }
std::uint64_t minus(std::uint64_t a, std::uint64_t b) { return std::min(a - b, a - b + kPrime); }
std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  const Wide product = Wide{a} * b;
  return plus(static_cast<std::uint64_t>(product) & kPrime,
              static_cast<std::uint64_t>(product >> kBits));
}

/// A polynomial's values at begin, begin + 1, ..., by forward differences.
template <std::size_t Coefficients>
class Walk {
 public:
  Walk(const std::array<std::uint64_t, Coefficients>& coefficients, std::uint64_t begin) {
    for (std::size_t i = 0; i < Coefficients; ++i) {
      std::uint64_t value = 0;
      for (std::size_t power = Coefficients; power-- > 0;) {
        value = plus(times(value, (begin + i) % kPrime), coefficients[power]);
      }
      differences_[i] = value;
    }
    for (std::size_t order = 1; order < Coefficients; ++order) {
      for (std::size_t i = Coefficients; i-- > order;) {
        differences_[i] = minus(differences_[i], differences_[i - 1]);
      }
    }
  }

  std::uint64_t next() {
    const std::uint64_t value = differences_[0];
    for (std::size_t order = 0; order + 1 < Coefficients; ++order) {
      differences_[order] = plus(differences_[order], differences_[order + 1]);
    }
    return value;
  }

 private:
  std::array<std::uint64_t, Coefficients> differences_;
};

/// The cell in a row of `columns` cells, for a hash below kPrime.
std::size_t cell_of(std::uint64_t hash, std::uint64_t columns) {
  return static_cast<std::size_t>((Wide{hash} * columns) >> kBits);
}

/// -value for odd hashes.
template <class Value>
Value signed_by(std::uint64_t hash, Value value) {
  using Bits = Key<Value>;
  return std::bit_cast<Value>(std::bit_cast<Bits>(value) ^
                              (static_cast<Bits>(hash) << (8 * sizeof(Bits) - 1)));
}

template <class Value>
Value median(Value a, Value b, Value c, Value d, Value e) {
  // The smallest and the largest of four cannot be the median of five.
  const Value low = std::max(std::min(a, b), std::min(c, d));
  const Value high = std::min(std::max(a, b), std::max(c, d));
  return std::max(std::min(low, high), std::min(std::max(low, high), e));
}

}  // namespace

CountSketch::CountSketch(std::uint64_t seed, std::uint64_t columns) : columns_(columns) {
  std::uint64_t number = 0;
  for (Row& row : rows_) {
    for (std::uint64_t& coefficient : row.cell) {
      coefficient = drawn(seed, ++number) % kPrime;
    }
    for (std::uint64_t& coefficient : row.sign) {
      coefficient = drawn(seed, ++number) % kPrime;
    }
  }
}

template <class Value>
void CountSketch::add(std::uint64_t begin, std::span<const Value> values, Value* cells) const {
  const KeepDenormals guard;
  for (const Row& row : rows_) {
    Walk cell(row.cell, begin);
    Walk sign(row.sign, begin);
    for (const Value value : values) {
      cells[cell_of(cell.next(), columns_)] += signed_by(sign.next(), value);
    }
    cells += columns_;
  }
}

template <class Value>
void CountSketch::estimate(const Value* cells, std::uint64_t begin,
                           std::span<Value> estimates) const {
  const KeepDenormals guard;
  std::array<std::array<Value, kStretch>, kRows> of;
  for (std::size_t number = 0; number < kRows; ++number) {
    Walk cell(rows_[number].cell, begin);
    Walk sign(rows_[number].sign, begin);
    for (std::size_t i = 0; i < estimates.size(); ++i) {
      of[number][i] = signed_by(sign.next(), cells[cell_of(cell.next(), columns_)]);
    }
    cells += columns_;
  }
  static_assert(kRows == 5);
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    estimates[i] = median(of[0][i], of[1][i], of[2][i], of[3][i], of[4][i]);
  }
}

template void CountSketch::add(std::uint64_t, std::span<const float>, float*) const;
template void CountSketch::add(std::uint64_t, std::span<const double>, double*) const;
template void CountSketch::estimate(const float*, std::uint64_t, std::span<float>) const;
template void CountSketch::estimate(const double*, std::uint64_t, std::span<double>) const;

}  // namespace gtopk::sparse
