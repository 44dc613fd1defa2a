// Test support: random inputs of the sparse all-reduce, aimed at where implementations break: ties,
// signed zeros, subnormals, one element, k beyond d, cancelling values, overflow, NaN. The seed
// alone replays a case.
#pragma once

#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gtopk/types.hpp"
#include "tests/reference/reference.hpp"

namespace gtopk::reference {

/// Gives the same numbers for a seed with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  /// 0 … below - 1
  [[nodiscard]] std::uint64_t below(std::uint64_t below) { return engine_() % below; }
  [[nodiscard]] bool one_in(std::uint64_t n) { return below(n) == 0; }
  /// In [0, 1), on a grid of 2^-53.
  [[nodiscard]] double uniform() { return static_cast<double>(engine_() >> 11U) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

struct Case {
  std::uint64_t seed = 0;
  std::string description;  ///< for a failing test: seed, sizes and what is special
  Problem problem;
};

/// A case of `type` for `ranks` ranks; op and put_back drawn, k and d small.
[[nodiscard]] Case random_case(std::uint64_t seed, DataType type, std::uint32_t ranks,
                               const std::string& algorithm);

/// The rank counts that every algorithm is tested with.
inline constexpr std::uint32_t kRankCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};
inline constexpr DataType kFloatingTypes[] = {DataType::kFloat32, DataType::kFloat64,
                                              DataType::kBfloat16, DataType::kFloat16};
/// Every algorithm of the registry, by name.
[[nodiscard]] std::vector<std::string> algorithms();
/// Whether ranks send selections of their own; otherwise it all-reduces values.
[[nodiscard]] bool sends_lists(const std::string& algorithm);
/// Its position in algorithms(), for seeds.
[[nodiscard]] std::uint64_t number_of(const std::string& algorithm);
/// Every wire of the registry that the algorithm takes, by name.
[[nodiscard]] std::vector<std::string> wires(const std::string& algorithm);

/// Every value of an enumeration that has a name, so that new ones are covered.
template <typename Enum>
[[nodiscard]] std::vector<Enum> named_values() {
  std::vector<Enum> values;
  for (unsigned value = 0; value < 256; ++value) {
    if (to_string(static_cast<Enum>(value)) != "unknown") {
      values.push_back(static_cast<Enum>(value));
    }
  }
  return values;
}

/// Entry `number` of a list, cyclically.
template <typename List>
[[nodiscard]] constexpr auto one_of(const List& list, std::uint64_t number) {
  return std::data(list)[number % std::size(list)];
}

/// The case that loses mass in the published code: ranks hold (A,1) (B,2) (A,3) (C,0.5), P = 4, k =
/// 1; A, B, C = 0, 1, 2; zero residuals.
[[nodiscard]] Problem published_counterexample(DataType type, PutBack put_back,
                                               const std::string& algorithm,
                                               ReduceOp op = ReduceOp::kSum);

}  // namespace gtopk::reference
