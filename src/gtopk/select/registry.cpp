#include "src/gtopk/select/selector.hpp"

namespace gtopk {

std::vector<Choice> selectors() { return sparse::selector_registry().choices(); }

namespace sparse {

Registry<SelectorRow>& selector_registry() {
  static Registry<SelectorRow> registry("selector",
                                        {&kExact, &kGaussian, &kSampled, &kThreshold, &kBlock});
  return registry;
}

}  // namespace sparse
}  // namespace gtopk
