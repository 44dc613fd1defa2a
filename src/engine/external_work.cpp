#include "src/engine/external_work.hpp"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "src/engine/engine.hpp"

namespace gtopk::engine {

/// Shared by an ExternalWork, its operation, and the thread that does the work.
struct ExternalWorkState {
  /// Used only on the engine thread.
  bool done = false;
  bool awaited = false;
  std::exception_ptr error;

  /// Null once the operation has been destroyed; the engine may be destroyed by then, too.
  Operation* operation = nullptr;
  std::mutex mutex;  // guards the pointer
};

namespace {

/// Must be called on the engine's thread.
void end(ExternalWorkState& external_work, Operation& operation, std::exception_ptr error) {
  external_work.done = true;
  external_work.error = std::move(error);
  operation.external_work_ended(external_work);
  if (external_work.awaited && operation.external_work_waiter) {
    operation.engine().make_ready(std::exchange(operation.external_work_waiter, {}), operation);
  }
}

}  // namespace

void Operation::external_work_begun(std::shared_ptr<ExternalWorkState> external_work) {
  external_work_.push_back(std::move(external_work));
  ++computing_;
}

void Operation::external_work_ended(const ExternalWorkState& external_work) {
  std::erase_if(external_work_, [&](const auto& each) { return each.get() == &external_work; });
  --computing_;
}

void leave_alone(ExternalWorkState& external_work) {
  const std::lock_guard lock(external_work.mutex);
  external_work.operation = nullptr;
}

ExternalWork::ExternalWork(GroupView& group, const std::function<void(Done)>& begin)
    : operation_(group.operation_), state_(std::make_shared<ExternalWorkState>()) {
  if (operation_.cause()) {
    throw Error(*operation_.cause());
  }
  state_->operation = &operation_;
  operation_.external_work_begun(state_);
  const auto done = [state = state_](std::exception_ptr error) {
    const std::lock_guard lock(state->mutex);
    if (state->operation == nullptr) {
      return;
    }
    // Posted work runs before the engine ends the operation, or not at all.
    state->operation->engine().post([state, error = std::move(error)] {
      if (Operation* const operation = state->operation) {
        end(*state, *operation, error);
      }
    });
  };
  try {
    begin(done);
  } catch (...) {
    operation_.external_work_ended(*state_);
    leave_alone(*state_);
    throw;
  }
}

ExternalWork::~ExternalWork() { state_->awaited = false; }

bool ExternalWork::await_ready() const { return state_->done || operation_.cause().has_value(); }

void ExternalWork::await_suspend(std::coroutine_handle<> waiter) {
  state_->awaited = true;
  operation_.external_work_waiter = waiter;
}

void ExternalWork::await_resume() {
  state_->awaited = false;
  if (operation_.cause()) {
    throw Error(*operation_.cause());
  }
  if (state_->error) {
    std::rethrow_exception(state_->error);
  }
}

}  // namespace gtopk::engine
