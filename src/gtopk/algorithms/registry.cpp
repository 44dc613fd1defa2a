#include "src/gtopk/algorithms/algorithm.hpp"

namespace gtopk {

std::vector<Choice> algorithms() { return sparse::algorithm_registry().choices(); }

std::vector<Choice> selecting_algorithms() {
  return sparse::algorithm_registry().choices_if(&sparse::AlgorithmRow::selects);
}

std::vector<Choice> predicted_algorithms() {
  return sparse::algorithm_registry().choices_if(
      [](const sparse::AlgorithmRow& row) { return row.cost != nullptr; });
}

namespace sparse {

Registry<AlgorithmRow>& algorithm_registry() {
  static Registry<AlgorithmRow> registry(
      "algorithm",
      {&kGtopk, &kGtopkTree, &kTopk, &kDense, &kDensePlaced, &kRsAg, &kExactTopk, &kHierarchical,
       &kGtopkPlaced, &kSketch, &kRandomK, &kTrueTopk},
      kAuto);
  return registry;
}

}  // namespace sparse
}  // namespace gtopk
