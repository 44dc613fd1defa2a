// Sparse, plan: chooses the cheapest of several algorithms and gives the reason as text. The choice
// is a pure function, so ranks with the same numbers get the same result.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gtopk/plan.hpp"
#include "src/gtopk/plan/work.hpp"

namespace gtopk::sparse {

struct Candidate {
  std::string_view algorithm;
  Work work;
};

struct Chosen {
  /// The index of the cheapest candidate, or of the first of several.
  std::size_t index = 0;
  std::string reason;
  /// The predictions, in the order of the candidates.
  std::vector<Prediction> predictions;
};

/// Chooses among at least one candidate.
[[nodiscard]] Chosen choose(std::span<const Candidate> candidates, const Costs& costs);

}  // namespace gtopk::sparse
