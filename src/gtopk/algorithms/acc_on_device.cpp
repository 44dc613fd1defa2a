// Sparse, algorithms: one gradient on a device, with an algorithm in which no rank selects.
// Ordinary calls use the same algorithm; here the device reads acc for it, and commits.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "gtopk/collectives.hpp"
#include "gtopk/device_acc.hpp"
#include "gtopk/error.hpp"
#include "src/gtopk/algorithms/automatic.hpp"
#include "src/gtopk/algorithms/detached_call.hpp"
#include "src/gtopk/algorithms/resolved_call.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "src/gtopk/algorithms/step_gate.hpp"

namespace gtopk::sparse {
namespace {

bool takes_a_device(const SparseCall& call, const ResolvedCall& resolved) {
  return resolved.algorithm->on_device != nullptr && resolved.coder() == nullptr && call.d != 0;
}

/// The names of the algorithms that can use a device, for error messages.
std::string algorithms_on_devices() {
  std::string names;
  for (const Choice& choice : algorithm_registry().choices()) {
    const AlgorithmRow& row = algorithm_registry().find(choice.name);
    if (row.on_device != nullptr) {
      names += fmt::format("{}'{}'", names.empty() ? "" : ", ", row.name);
    }
  }
  return names;
}

}  // namespace
}  // namespace gtopk::sparse

namespace gtopk {

std::optional<AccCapacity> acc_capacity(std::uint64_t d, DataType dtype,
                                        const SparseOptions& options) {
  if (options.algorithm == sparse::kAuto) {
    return std::nullopt;
  }
  const sparse::SparseCall call = sparse::detached_call(d, dtype, options, {});
  const sparse::ResolvedCall resolved = sparse::resolve(call);
  if (!sparse::takes_a_device(call, resolved)) {
    return std::nullopt;
  }
  AccCapacity capacity = resolved.algorithm->on_device(d, resolved.lists.k);
  capacity.index_bytes = resolved.lists.type.index_bytes;
  return capacity;
}

Collective sparse_all_reduce(const AccOnDevice& step, std::uint64_t d, DataType dtype,
                             const SparseOptions& options, const Delivered& delivered) {
  sparse::SparseCall call = sparse::detached_call(d, dtype, options, delivered);
  call.device = step;
  if (options.gate) {
    call.gate = std::make_shared<sparse::StepGate>(options.gate);
  }
  const sparse::ResolvedCall resolved = sparse::resolve(call);
  if (!sparse::takes_a_device(call, resolved)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("sparse_all_reduce of acc on a device takes one of the algorithms {}, "
                            "values that are not coded and a tensor that is not empty; given "
                            "algorithm '{}', wire '{}' and {} elements",
                            sparse::algorithms_on_devices(), options.algorithm, options.wire, d));
  }
  Collective collective;
  collective.name = fmt::format("sparse_all_reduce({})", resolved.algorithm->name);
  collective.agreement = sparse::agreement(call, resolved);
  collective.check = sparse::check_of_capacity(resolved, delivered);
  collective.body = [call, resolved](engine::GroupView& group) {
    return sparse::sparse_all_reduce(group, call, resolved, nullptr);
  };
  return collective;
}

}  // namespace gtopk
