// Torch backend: a Work's futures.
#include <c10/core/StreamGuard.h>

#include <utility>

#include "src/torch_backend/work.hpp"

namespace gtopk::torch_backend {

c10::intrusive_ptr<c10::ivalue::Future> GtopkWork::getFuture() {
  want();  // the caller may be about to wait for the future, which is invisible
  const std::lock_guard lock(ending_->mutex);
  if (!future_) {
    std::vector<c10::Device> devices;
    if (device_) {
      devices.push_back(device_->device());
    }
    future_ = c10::make_intrusive<Future>(c10::ListType::ofTensors(), std::move(devices));
    if (ending_->completed) {
      if (exception_ && device_) {
        unseen_->forget(exception_);  // the future reports it
      }
      complete();
    } else {
      // This callback is the first one, so that threads waiting for the Work continue before other
      // callbacks run.
      future_->addCallback(
          [ending = ending_](Future&) {
            { const std::lock_guard set(ending->mutex); }
            ending->told.notify_all();
          },
          false);
      follow();
    }
  }
  return future_;
}

void GtopkWork::follow() {
  if (!in_order_ || c10d::isP2POp(opType_)) {
    return;
  }
  if (!entry_ || !CallOrder::also_track(entry_, future_, 0)) {
    entry_ = group_->order().track(sequence_, caller_, future_);
  }
}

void GtopkWork::is_part_of(const c10::intrusive_ptr<Future>& whole) {
  const std::lock_guard lock(ending_->mutex);
  if (entry_ && !ending_->completed) {
    static_cast<void>(CallOrder::also_track(entry_, whole, 1));
  }
}

void GtopkWork::want() {
  if (!CallOrder::calling()) {
    return;
  }
  CallOrder::EntryPointer entry;
  {
    const std::lock_guard lock(ending_->mutex);
    entry = ended() ? nullptr : entry_;
  }
  if (entry) {
    entry->order->wanted(entry);
  }
}

void GtopkWork::finish(Self self) {
  if (!self) {
    return;
  }
  if (self->entry_) {
    const CallOrder::EntryPointer entry = self->entry_;
    Completer& completer = *self->completer_;
    entry->order->ended(entry, completer, [self = std::move(self)] { self->complete(); });
    return;
  }
  const std::shared_ptr<GroupState> group = self->group_;
  try {
    // Calls made by its callbacks take the place of the callback that made them.
    const CallOrder::Within within(self->caller_);
    const CallOrder::InFlight in_flight(self->caller_);
    self->complete();
  } catch (...) {  // a callback has thrown
    group->order().advance();
    throw;
  }
  group->order().advance();  // an entry may have waited for callbacks of a window
}

c10::intrusive_ptr<c10::ivalue::Future> GtopkWork::getFutureResult() {
  auto result = c10::make_intrusive<Future>(c10::IntType::get());
  auto self = c10::intrusive_ptr<GtopkWork>::unsafe_reclaim_from_nonowning(this);
  const c10::intrusive_ptr<Future> future = getFuture();
  is_part_of(result);
  future->addCallback(
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
  // The future records the current stream, so that must be the one that has the results.
  c10::OptionalStreamGuard on_stream;
  if (device_) {
    try {
      on_stream.reset_stream(device_->stream());
      static_cast<void>(device_->await(memory_));
      static_cast<void>(device_->has_results());  // throws before torch would, midway
    } catch (...) {                               // the device has failed
      future_->setError(std::current_exception());
      return;
    }
  }
  future_->markCompleted(c10::IValue(result_));
}

}  // namespace gtopk::torch_backend
