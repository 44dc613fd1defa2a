// Sparse, select: the row of `exact`, for every type.
#include "src/gtopk/select/selector.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {
namespace {

Selection exact_select(const SelectionInput& input, const List& out, SelectScratch& scratch) {
  return visit_selection(input, [&]<class T, class Index>() {
    using Value = Accumulation<T>;
    return select_exact<T, Value, Index>(Segments<T>(input.tensor),
                                         static_cast<const Value*>(input.residual), input.d,
                                         input.k, out.output<Value, Index>(), scratch);
  });
}

std::optional<SelectionRule> exact_on_device(std::uint64_t /*d*/, std::uint64_t k,
                                             const SparseOptions& /*options*/) {
  return SelectionRule{.k = k, .most = k};
}

}  // namespace

const SelectorRow kExact{.name = "exact",
                         .description = "the k largest magnitudes, ties to the lower index",
                         .select = exact_select,
                         .on_device = exact_on_device};

}  // namespace gtopk::sparse
