#include "src/gtopk/algorithms/step_gate.hpp"

namespace gtopk::sparse {
namespace {

using engine::Computation;
using engine::GroupView;
using engine::Task;

/// Arrives with this call's outcome; returns whether the whole step happened.
Task<bool> pass(GroupView& group, StepGate& place, bool happened) {
  group.enter("gate");
  place.arrive(happened);
  engine::AtGate gate(group, place.gate());
  const bool all_happened = co_await gate;
  co_return all_happened;
}

}  // namespace

Task<void> settle(GroupView& group, StepGate* place, std::uint64_t elements,
                  std::function<bool()> decide, std::function<void(bool)> finish) {
  group.enter("commit");
  if (place == nullptr) {
    Computation settling = group.compute(elements, [&] { finish(decide()); });
    co_await settling;
    co_return;
  }
  bool happened = false;
  Computation deciding = group.compute(elements, [&] { happened = decide(); });
  co_await deciding;
  Task<bool> passing = pass(group, *place, happened);
  happened = co_await passing;
  group.enter("commit");
  Computation finishing = group.compute(elements, [&] { finish(happened); });
  co_await finishing;
}

}  // namespace gtopk::sparse
