#include "src/torch_backend/window.hpp"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "src/torch_backend/signals.hpp"
#include "src/torch_backend/work.hpp"

namespace gtopk::torch_backend {
namespace {

using Future = c10::ivalue::Future;
using FuturePointer = c10::intrusive_ptr<Future>;

/// Futures that are combined into one.
struct Gathering {
  std::vector<FuturePointer> parts;
  std::atomic<std::size_t> left;
  FuturePointer whole;
};

void complete(const Gathering& gathering) {
  // The whole's future records, for each device, a stream that has waited for the parts.
  std::vector<c10::Stream> streams;
  for (const c10::Device device : gathering.whole->devices()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    streams.push_back(guard.getStreamFromGlobalPool(device));
  }
  const c10::MultiStreamGuard on_streams(streams);
  std::vector<at::Tensor> result;
  for (const FuturePointer& part : gathering.parts) {
    if (part->hasError()) {
      gathering.whole->setError(part->exception_ptr());
      return;
    }
    part->wait();  // waits on its streams only: it is complete
    const std::vector<at::Tensor> tensors = part->value().toTensorVector();
    result.insert(result.end(), tensors.begin(), tensors.end());
  }
  gathering.whole->markCompleted(c10::IValue(std::move(result)));
}

}  // namespace

CoalescedWork::CoalescedWork(int rank, Works works)
    : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool CoalescedWork::isCompleted() {
  return std::ranges::all_of(works_, [](const auto& work) { return work->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::ranges::all_of(works_, [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_) {
    if (const std::exception_ptr error = work->exception()) {
      return error;
    }
  }
  return nullptr;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::min(timeout, kLongestTimeout);
  const auto left = [&] {
    if (timeout == kNoTimeout) {
      return kNoTimeout;
    }
    const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    return std::max(rest, std::chrono::milliseconds(1));
  };
  std::exception_ptr first;
  for (const auto& work : works_) {
    try {
      work->wait(left());
    } catch (const HandlerRaised&) {
      throw;
    } catch (...) {
      if (!first) {
        first = std::current_exception();
      }
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
  return true;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    const std::vector<at::Tensor> one = work->result();
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

FuturePointer CoalescedWork::getFuture() {
  const std::lock_guard lock(mutex_);
  if (future_) {
    return future_;
  }
  const auto gathering = std::make_shared<Gathering>();
  std::vector<c10::Device> devices;
  for (const auto& work : works_) {
    gathering->parts.push_back(work->getFuture());
    for (const c10::Device device : gathering->parts.back()->devices()) {
      if (std::ranges::find(devices, device) == devices.end()) {
        devices.push_back(device);
      }
    }
  }
  future_ = c10::make_intrusive<Future>(c10::ListType::ofTensors(), std::move(devices));
  gathering->whole = future_;
  gathering->left = works_.size() + 1;
  const auto one_less = [gathering] {
    if (--gathering->left == 0) {
      complete(*gathering);
    }
  };
  for (const FuturePointer& part : gathering->parts) {
    part->addCallback([one_less](Future&) { one_less(); }, false);
  }
  one_less();  // covers the case of no Works, too
  return future_;
}

void Window::open() {
  const std::lock_guard lock(mutex_);
  if (!works_) {
    works_.emplace();
  }
}

Works Window::close() {
  const std::lock_guard lock(mutex_);
  return std::exchange(works_, std::nullopt).value_or(Works());
}

void Window::note(const c10::intrusive_ptr<c10d::Work>& work) {
  const std::lock_guard lock(mutex_);
  if (!works_) {
    return;
  }
  works_->push_back(work);
  if (works_->size() % kMany != 0) {
    return;
  }
  std::erase_if(*works_, [](const auto& each) { return each->isCompleted() && each->isSuccess(); });
}

ClosesOnError::~ClosesOnError() {
  if (std::uncaught_exceptions() > exceptions_) {
    static_cast<void>(window_.close());
  }
}

}  // namespace gtopk::torch_backend
