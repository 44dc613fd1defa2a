#include "src/torch_backend/sparse_options.hpp"

#include <initializer_list>

#include "gtopk/collectives.hpp"
#include "src/torch_backend/errors.hpp"
#include "src/torch_backend/tensors.hpp"

namespace gtopk::torch_backend {
namespace {

/// Returns the value with this name; `what` is the option.
template <class Value>
Value named(const char* what, const std::string& name, std::initializer_list<Value> values) {
  std::string names;
  for (const Value value : values) {
    if (name == to_string(value)) {
      return value;
    }
    names.append(names.empty() ? "" : ", ").append(to_string(value));
  }
  TORCH_CHECK_VALUE(false, "gtopk: unknown ", what, " '", name, "'; available: ", names);
}

SparseOptions parsed(const NamedOptions& given) {
  const auto& [k, density, algorithm, select, block, put_back, wire, semantics, op, mean] = given;
  // Zero stands for None in the core.
  TORCH_CHECK_VALUE(!k || *k >= 1, "gtopk: sparse_all_reduce needs k >= 1, seen ", *k);
  TORCH_CHECK_VALUE(!density || *density != 0,
                    "gtopk: sparse_all_reduce needs a density in (0, 1], seen 0");
  TORCH_CHECK_VALUE(block >= 1, "gtopk: sparse_all_reduce needs block >= 1, seen ", block);
  SparseOptions options;
  options.k = static_cast<std::uint64_t>(k.value_or(0));
  options.density = density.value_or(0);
  options.algorithm = algorithm;
  options.selector = select;
  options.block = static_cast<std::uint64_t>(block);
  options.put_back = named("put_back", put_back, {PutBack::kOwn, PutBack::kMerged});
  options.wire = wire.value_or(options.wire);
  options.semantics =
      named("semantics", semantics,
            {Semantics::kDense, Semantics::kExactSum, Semantics::kGtopk, Semantics::kAny});
  options.op = reduce_op(c10d::ReduceOp(static_cast<c10d::ReduceOp::RedOpType>(op)));
  options.mean = named("mean", mean, {MeanOver::kRanks, MeanOver::kContributors});
  return options;
}

}  // namespace

TorchOptions::TorchOptions(const NamedOptions& given) : options_(parsed(given)) {
  try {
    check_options(options_);
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
}

c10::Dict<std::string, bool> TorchOptions::traits() const {
  try {
    const CallTraits of = traits_of(options_);
    c10::Dict<std::string, bool> traits;
    traits.insert("selects", of.selects);
    traits.insert("delivers_all", of.delivers_all);
    traits.insert("delivers_selections", of.delivers_selections);
    traits.insert("whole_sums", of.whole_sums);
    traits.insert("empties_residual", of.empties_residual);
    traits.insert("adds_elements", of.adds_elements);
    traits.insert("rounds", of.rounds);
    traits.insert("per_block", of.per_block);
    return traits;
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
}

std::int64_t TorchOptions::most_delivered(std::int64_t d, std::int64_t ranks) const {
  try {
    return static_cast<std::int64_t>(gtopk::most_delivered(static_cast<std::uint64_t>(d), options_,
                                                           static_cast<std::uint32_t>(ranks)));
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
}

}  // namespace gtopk::torch_backend
