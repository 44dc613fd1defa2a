// Sparse, plan: the cheapest of several algorithms, and the reason as text. A pure function:
// ranks with the same numbers get the same result.
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
  /// The cheapest candidate, the first of equals.
  std::size_t index = 0;
  std::string reason;
  /// In the order of the candidates.
  std::vector<Prediction> predictions;
};

/// At least one candidate.
[[nodiscard]] Chosen choose(std::span<const Candidate> candidates, const Costs& costs);

}  // namespace gtopk::sparse
