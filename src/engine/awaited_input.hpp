// Engine: the input of an operation while a copy from a device to the caller's memory is in flight.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "gtopk/gate.hpp"

namespace gtopk::engine {

/// While the object lives, it calls `then` on the deciding thread when the gate is decided.
class AwaitedInput {
 public:
  AwaitedInput(std::shared_ptr<Gate> gate, std::function<void()> then)
      : gate_(std::move(gate)), waiter_(gate_->when_decided(std::move(then))) {}
  AwaitedInput(const AwaitedInput&) = delete;
  AwaitedInput& operator=(const AwaitedInput&) = delete;
  AwaitedInput(AwaitedInput&&) = delete;
  AwaitedInput& operator=(AwaitedInput&&) = delete;
  ~AwaitedInput() { gate_->forget(waiter_); }

  [[nodiscard]] bool decided() const { return gate_->verdict().has_value(); }
  /// Gives up waiting; the operation must then run without its input, and fail.
  void give_up() { gate_->shut(); }

 private:
  std::shared_ptr<Gate> gate_;
  Gate::Waiters::iterator waiter_;
};

}  // namespace gtopk::engine
