// Torch backend: a Work's futures.
#include <c10/core/StreamGuard.h>

#include <utility>

#include "src/torch_backend/work.hpp"

namespace gtopk::torch_backend {

c10::intrusive_ptr<c10::ivalue::Future> GtopkWork::getFuture() {
  const std::lock_guard lock(ending_->mutex);
  if (!future_) {
    std::vector<c10::Device> devices;
    if (device_) {
      devices.push_back(device_->device());
    }
    future_ = c10::make_intrusive<Future>(c10::ListType::ofTensors(), std::move(devices));
    if (ending_->completed) {
      if (exception_ && device_) {
        unseen_->forget(exception_);  // the future has it
      }
      complete();
    } else {
      // Its first callback: threads waiting for the Work go on before the other callbacks run.
      future_->addCallback(
          [ending = ending_](Future&) {
            { const std::lock_guard set(ending->mutex); }
            ending->told.notify_all();
          },
          false);
    }
  }
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> GtopkWork::getFutureResult() {
  auto result = c10::make_intrusive<Future>(c10::IntType::get());
  auto self = c10::intrusive_ptr<GtopkWork>::unsafe_reclaim_from_nonowning(this);
  getFuture()->addCallback(
      [self, result](Future&) {
        result->markCompleted(c10::IValue(static_cast<std::int64_t>(self->outcome_)));
      },
      false);
  return result;
}

void GtopkWork::complete() const {
  if (exception_) {
    future_->setError(exception_);
    return;
  }
  // The future records the current stream, so it must be the one that has the results.
  c10::OptionalStreamGuard on_stream;
  if (device_) {
    try {
      on_stream.reset_stream(device_->stream());
      static_cast<void>(device_->await(memory_));
      static_cast<void>(device_->has_results());  // throws before torch would, in the middle
    } catch (...) {                               // the device has failed
      future_->setError(std::current_exception());
      return;
    }
  }
  future_->markCompleted(c10::IValue(result_));
}

}  // namespace gtopk::torch_backend
