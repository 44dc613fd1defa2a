// Sparse, algorithms room: a call's place at the gate of its step, between exchange and commit.
#pragma once

#include <memory>
#include <utility>

#include "gtopk/gate.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::sparse {

/// Arrives once; a call that goes without having arrived has not happened.
class StepGate {
 public:
  explicit StepGate(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  StepGate(const StepGate&) = delete;
  StepGate& operator=(const StepGate&) = delete;
  StepGate(StepGate&&) = delete;
  StepGate& operator=(StepGate&&) = delete;
  ~StepGate() { give_up(); }

  void arrive(bool happened) {
    if (!std::exchange(arrived_, true)) gate_->arrive(happened);
  }
  void give_up() { arrive(false); }
  [[nodiscard]] Gate& gate() { return *gate_; }

 private:
  std::shared_ptr<Gate> gate_;
  bool arrived_ = false;
};

/// Gives the place up when its scope ends. Null: there is no gate.
class GiveUpGate {
 public:
  explicit GiveUpGate(StepGate* place) : place_(place) {}
  GiveUpGate(const GiveUpGate&) = delete;
  GiveUpGate& operator=(const GiveUpGate&) = delete;
  GiveUpGate(GiveUpGate&&) = delete;
  GiveUpGate& operator=(GiveUpGate&&) = delete;
  ~GiveUpGate() {
    if (place_ != nullptr) place_->give_up();
  }

 private:
  StepGate* place_;
};

/// Whether the call may commit. `happened`: its own part was finite on every rank; with a gate, the
/// whole step must have been. Null: there is no gate.
[[nodiscard]] inline engine::Task<bool> pass(engine::GroupView& group, StepGate* place,
                                             bool happened) {
  if (place == nullptr) co_return happened;
  group.enter("gate");
  place->arrive(happened);
  engine::AtGate gate(group, place->gate());
  const bool all_happened = co_await gate;
  co_return all_happened;
}

}  // namespace gtopk::sparse
