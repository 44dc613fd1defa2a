#include "src/gtopk/algorithms/algorithm.hpp"

namespace gtopk {

std::vector<Choice> algorithms() { return sparse::algorithm_registry().choices(); }

namespace sparse {

Registry<AlgorithmRow>& algorithm_registry() {
  static Registry<AlgorithmRow> registry(
      "algorithm", {&kGtopk, &kGtopkTree, &kTopk, &kDense, &kRsAg, &kExactTopk, &kHierarchical,
                    &kGtopkPlaced, &kSketch, &kRandomK, &kTrueTopk});
  return registry;
}

}  // namespace sparse
}  // namespace gtopk
