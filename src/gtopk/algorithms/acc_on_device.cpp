// Sparse, algorithms room: one gradient on a device, with an algorithm in which no rank selects.
// The algorithm is that of ordinary calls; the device reads acc for it, and commits.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "gtopk/collectives.hpp"
#include "gtopk/device_acc.hpp"
#include "gtopk/error.hpp"
#include "src/gtopk/algorithms/automatic.hpp"
#include "src/gtopk/algorithms/call_plan.hpp"
#include "src/gtopk/algorithms/detached_call.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "src/gtopk/algorithms/step_gate.hpp"

namespace gtopk::sparse {
namespace {

bool takes_a_device(const SparseCall& call, const Plan& plan) {
  return plan.algorithm->on_device != nullptr && plan.coder() == nullptr && call.d != 0;
}

/// Used in messages.
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

std::optional<AccCapacity> acc_room(std::uint64_t d, DataType dtype, const SparseOptions& options) {
  if (options.algorithm == sparse::kAuto) {
    return std::nullopt;
  }
  const sparse::SparseCall call = sparse::detached_call(d, dtype, options, {});
  const sparse::Plan plan = sparse::plan(call);
  if (!sparse::takes_a_device(call, plan)) {
    return std::nullopt;
  }
  AccCapacity room = plan.algorithm->on_device(d, plan.lists.k);
  room.index_bytes = plan.lists.type.index_bytes;
  return room;
}

Collective sparse_all_reduce(const AccOnDevice& step, std::uint64_t d, DataType dtype,
                             const SparseOptions& options, const Delivered& delivered) {
  sparse::SparseCall call = sparse::detached_call(d, dtype, options, delivered);
  call.device = step;
  if (options.gate) {
    call.gate = std::make_shared<sparse::StepGate>(options.gate);
  }
  const sparse::Plan plan = sparse::plan(call);
  if (!sparse::takes_a_device(call, plan)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("sparse_all_reduce of acc on a device takes one of the algorithms {}, "
                            "values that are not coded and a tensor that is not empty; given "
                            "algorithm '{}', wire '{}' and {} elements",
                            sparse::algorithms_on_devices(), options.algorithm, options.wire, d));
  }
  Collective collective;
  collective.name = fmt::format("sparse_all_reduce({})", plan.algorithm->name);
  collective.agreement = sparse::agreement(call, plan);
  collective.check = sparse::check_of_room(plan, delivered);
  collective.body = [call, plan](engine::GroupView& group) {
    return sparse::sparse_all_reduce(group, call, plan, nullptr);
  };
  return collective;
}

}  // namespace gtopk
