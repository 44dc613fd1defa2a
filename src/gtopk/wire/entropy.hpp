// Sparse, wire: the least number of bits that a set of indices needs. It uses only additions,
// multiplications and divisions, which IEEE 754 rounds alike on every machine; a library's log2 may
// differ.
#pragma once

#include <cmath>
#include <cstdint>

namespace gtopk::sparse {

/// Computes log2 x, x >= 1, to about 1e-15: 2 (z + z^3/3 + z^5/5 + ...) / ln 2 with z = (m - 1) /
/// (m + 1).
[[nodiscard]] inline double log2_alike(double x) {
  constexpr double kTwoOverLn2 = 2.88539008177792681472;
  constexpr int kLastPower = 33;  // z <= 1/3
  int exponent = 0;
  const double mantissa = 2 * std::frexp(x, &exponent);  // in [1, 2); exact
  const double z = (mantissa - 1) / (mantissa + 1);
  double sum = 0;
  for (int power = kLastPower; power > 0; power -= 2) {
    sum = sum * z * z + 1.0 / power;
  }
  return (exponent - 1) + kTwoOverLn2 * (sum * z);
}

/// Computes log2 C(d, n) / n, 1 <= n <= d, by its limit for large n: (d/n) H(n/d), where H is the
/// binary entropy.
[[nodiscard]] inline double bits_of_index(std::uint64_t n, std::uint64_t d) {
  if (n == d) {
    return 0;
  }
  const auto there = static_cast<double>(n);
  const auto all = static_cast<double>(d);
  const double others = all - there;
  return log2_alike(all / there) + others / there * log2_alike(all / others);
}

}  // namespace gtopk::sparse
