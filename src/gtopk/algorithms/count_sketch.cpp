#include "src/gtopk/algorithms/count_sketch.hpp"

#include <array>

#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

std::uint64_t minus(std::uint64_t a, std::uint64_t b) { return hash_plus(a, kHashPrime - b); }

/// Computes a polynomial's values at begin, begin + 1, ..., by forward differences.
template <std::size_t Coefficients>
class Walk {
 public:
  Walk(const std::uint64_t (&coefficients)[Coefficients], std::uint64_t begin) {
    for (std::size_t i = 0; i < Coefficients; ++i) {
      differences_[i] = polynomial(coefficients, (begin + i) % kHashPrime);
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
      differences_[order] = hash_plus(differences_[order], differences_[order + 1]);
    }
    return value;
  }

 private:
  std::array<std::uint64_t, Coefficients> differences_;
};

}  // namespace

template <class Value>
void CountSketch::add(std::size_t row, std::uint64_t begin, std::span<const Value> values,
                      FixedPoint point, std::uint64_t* cells) const {
  const KeepDenormals guard;
  std::array<std::uint64_t, kStretch> numbers;
  for (std::size_t i = 0; i < values.size(); ++i) {
    numbers[i] = point.round(values[i]);
  }
  const std::uint64_t columns = hashes_.columns;  // a copy: the loop writes cells of this type
  Walk cell(hashes_.rows[row].cell, begin);
  Walk sign(hashes_.rows[row].sign, begin);
  for (std::size_t i = 0; i < values.size(); ++i) {
    cells[cell_of(cell.next(), columns)] += signed_by(sign.next(), numbers[i]);
  }
}

template <class Value>
void CountSketch::estimate(const Value* cells, std::uint64_t begin,
                           std::span<Value> estimates) const {
  const KeepDenormals guard;
  std::array<std::array<Value, kStretch>, kRows> of;
  for (std::size_t number = 0; number < kRows; ++number) {
    Walk cell(hashes_.rows[number].cell, begin);
    Walk sign(hashes_.rows[number].sign, begin);
    for (std::size_t i = 0; i < estimates.size(); ++i) {
      of[number][i] = signed_by(sign.next(), cells[cell_of(cell.next(), hashes_.columns)]);
    }
    cells += hashes_.columns;
  }
  static_assert(kRows == 5);
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    estimates[i] = median(of[0][i], of[1][i], of[2][i], of[3][i], of[4][i]);
  }
}

template void CountSketch::add(std::size_t, std::uint64_t, std::span<const float>, FixedPoint,
                               std::uint64_t*) const;
template void CountSketch::add(std::size_t, std::uint64_t, std::span<const double>, FixedPoint,
                               std::uint64_t*) const;
template void CountSketch::estimate(const float*, std::uint64_t, std::span<float>) const;
template void CountSketch::estimate(const double*, std::uint64_t, std::span<double>) const;

}  // namespace gtopk::sparse
