#include "src/torch_backend/past_works.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gtopk::torch_backend {

void PastWorks::add(TimedWork& work) {
  if (auto* const past = dynamic_cast<PastWorks*>(&work)) {
    std::ranges::move(past->tensors_, std::back_inserter(tensors_));
    past->tensors_.clear();
  } else {
    for (const at::Tensor& tensor : work.result()) {
      tensors_.emplace_back(tensor.getIntrusivePtr());
    }
  }
  if (tensors_.size() >= purge_at_) {
    std::erase_if(tensors_, [](const WeakTensor& each) { return each.expired(); });
    purge_at_ = std::max(purge_at_, 2 * tensors_.size());
  }
  const Span other = work.span();
  span_ = span_ ? span_->and_of(other) : other;
  sequence_ = std::max(sequence_, work.getSequencenumber());
}

void PastWorks::hold() {
  for (const WeakTensor& each : std::exchange(tensors_, {})) {
    if (auto tensor = each.lock(); tensor.defined()) {
      held_.emplace_back(std::move(tensor));
    }
  }
}

c10::intrusive_ptr<c10::ivalue::Future> PastWorks::getFuture() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
  future->markCompleted(c10::IValue(held_));
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> PastWorks::getFutureResult() {
  auto result = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  result->markCompleted(c10::IValue(static_cast<std::int64_t>(c10d::WorkResult::SUCCESS)));
  return result;
}

}  // namespace gtopk::torch_backend
