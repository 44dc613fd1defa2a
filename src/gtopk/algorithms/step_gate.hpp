// Sparse, algorithms: a call's place at the gate of its step, between exchange and commit,
// which decides whether the call happens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gtopk/gate.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"

namespace gtopk::sparse {

/// A place that arrives once. A call that is destroyed before it arrives counts as not happened.
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

/// Releases the place at the end of the scope. Null means that there is no gate.
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

/// Ends a call on this many elements. decide() returns whether the call's own part was finite on
/// every rank; finish(happened) writes the result, or NaN. If there is no gate between them, both
/// are one sweep. Pass them by std::ref(): a copy allocates memory if they capture much.
engine::Task<void> settle(engine::GroupView& group, StepGate* place, std::uint64_t elements,
                          std::function<bool()> decide, std::function<void(bool)> finish);

}  // namespace gtopk::sparse
