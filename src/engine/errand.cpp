#include "src/engine/errand.hpp"

#include <mutex>
#include <utility>

#include "src/engine/engine.hpp"

namespace gtopk::engine {

/// Shared by the errand, its operation, and whoever does the work.
struct ErrandState {
  /// On the engine's thread.
  bool done = false;
  bool awaited = false;
  std::exception_ptr error;

  /// Null once the operation is gone: the engine may be, too.
  Operation* operation = nullptr;
  std::mutex mutex;  // guards that pointer
};

namespace {

/// On the engine's thread.
void end(ErrandState& errand, Operation& operation, std::exception_ptr error) {
  errand.done = true;
  errand.error = std::move(error);
  operation.errand_ended(errand);
  if (errand.awaited && operation.errand_waiter) {
    operation.engine().make_ready(std::exchange(operation.errand_waiter, {}), operation);
  }
}

}  // namespace

void leave_alone(ErrandState& errand) {
  const std::lock_guard lock(errand.mutex);
  errand.operation = nullptr;
}

Errand::Errand(GroupView& group, const std::function<void(Done)>& begin)
    : operation_(group.operation_), state_(std::make_shared<ErrandState>()) {
  if (operation_.cause()) {
    throw Error(*operation_.cause());
  }
  state_->operation = &operation_;
  operation_.errand_begun(state_);
  const auto done = [state = state_](std::exception_ptr error) {
    const std::lock_guard lock(state->mutex);
    if (state->operation == nullptr) {
      return;
    }
    // What is posted runs before the engine ends the operation, or not at all.
    state->operation->engine().post([state, error = std::move(error)] {
      if (Operation* const operation = state->operation) {
        end(*state, *operation, error);
      }
    });
  };
  try {
    begin(done);
  } catch (...) {
    operation_.errand_ended(*state_);
    leave_alone(*state_);
    throw;
  }
}

Errand::~Errand() { state_->awaited = false; }

bool Errand::await_ready() const { return state_->done || operation_.cause().has_value(); }

void Errand::await_suspend(std::coroutine_handle<> waiter) {
  state_->awaited = true;
  operation_.errand_waiter = waiter;
}

void Errand::await_resume() {
  state_->awaited = false;
  if (operation_.cause()) {
    throw Error(*operation_.cause());
  }
  if (state_->error) {
    std::rethrow_exception(state_->error);
  }
}

}  // namespace gtopk::engine
