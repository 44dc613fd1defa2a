// Tests, algorithms: a case of plain random gradients, into which a test may plant what
// it is about; tests/support/cases.hpp draws difficult ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tests/reference/reference.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::sparse::testing {

/// d elements of each rank, of [-0.5, 0.5), and residuals of zeros. seed: by default `ranks`.
inline reference::Problem noise(std::uint32_t ranks, std::uint64_t d, std::uint64_t k,
                                const std::string& algorithm, DataType type = DataType::kFloat32,
                                std::optional<std::uint64_t> seed = std::nullopt) {
  reference::Random random(seed.value_or(ranks));
  reference::Problem problem;
  problem.type = type;
  problem.d = d;
  problem.options.k = k;
  problem.options.algorithm = algorithm;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    reference::Input input{reference::zeros(type, d), reference::zeros(accumulation_type(type), d)};
    for (std::uint64_t i = 0; i < d; ++i) {
      reference::store(type, input.gradient, i, random.uniform() - 0.5);
    }
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

}  // namespace gtopk::sparse::testing
