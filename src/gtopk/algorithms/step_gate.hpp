// Sparse, algorithms room: a call's place at the gate of its step, between exchange and commit,
// which decides whether the call happens.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "gtopk/gate.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::sparse {

/// Arrives once; a call that is destroyed before it arrives counts as not happened.
class StepGate {
 public:
  explicit StepGate(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  StepGate(const StepGate&) = delete;
  StepGate& operator=(const StepGate&) = delete;
  StepGate(StepGate&&) = delete;
  StepGate& operator=(StepGate&&) = delete;
  ~StepGate() { give_up(); }

  void arrive(bool happened) {
    if (!std::exchange(arrived_, true)) {
      gate_->arrive(happened);
    }
  }
  void give_up() { arrive(false); }
  [[nodiscard]] Gate& gate() { return *gate_; }

 private:
  std::shared_ptr<Gate> gate_;
  bool arrived_ = false;
};

/// Releases the place at the end of the scope. Null: there is no gate.
class GiveUpGate {
 public:
  explicit GiveUpGate(StepGate* place) : place_(place) {}
  GiveUpGate(const GiveUpGate&) = delete;
  GiveUpGate& operator=(const GiveUpGate&) = delete;
  GiveUpGate(GiveUpGate&&) = delete;
  GiveUpGate& operator=(GiveUpGate&&) = delete;
  ~GiveUpGate() {
    if (place_ != nullptr) {
      place_->give_up();
    }
  }

 private:
  StepGate* place_;
};

/// Arrives with this call's outcome; returns whether the whole step happened.
[[nodiscard]] inline engine::Task<bool> pass(engine::GroupView& group, StepGate& place,
                                             bool happened) {
  group.enter("gate");
  place.arrive(happened);
  engine::AtGate gate(group, place.gate());
  const bool all_happened = co_await gate;
  co_return all_happened;
}

/// The end of a call on so many elements. decide(): whether its own part was finite on every rank;
/// finish(happened) writes the result, or NaN. Both are one sweep if there is no gate between them.
template <class Decide, class Finish>
engine::Task<void> settle(engine::GroupView& group, StepGate* place, std::uint64_t elements,
                          Decide decide, Finish finish) {
  group.enter("commit");
  if (place == nullptr) {
    engine::Computation settling = group.compute(elements, [&] { finish(decide()); });
    co_await settling;
    co_return;
  }
  bool happened = false;
  engine::Computation deciding = group.compute(elements, [&] { happened = decide(); });
  co_await deciding;
  engine::Task<bool> passing = pass(group, *place, happened);
  happened = co_await passing;
  group.enter("commit");
  engine::Computation finishing = group.compute(elements, [&] { finish(happened); });
  co_await finishing;
}

}  // namespace gtopk::sparse
