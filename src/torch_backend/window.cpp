#include "src/torch_backend/window.hpp"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "src/torch_backend/past_works.hpp"
#include "src/torch_backend/signals.hpp"

namespace gtopk::torch_backend {
namespace {

using Future = c10::ivalue::Future;
using FuturePointer = c10::intrusive_ptr<Future>;

using Futures = std::vector<FuturePointer>;

/// Calls `then` with the futures when all of them have completed.
void when_all(Futures parts, std::function<void(const Futures&)> then) {
  struct Gathering {
    Futures parts;
    std::atomic<std::size_t> left;
    std::function<void(const Futures&)> then;
  };
  const auto gathering = std::make_shared<Gathering>();
  gathering->left = parts.size() + 1;
  gathering->parts = std::move(parts);
  gathering->then = std::move(then);
  const auto one_less = [gathering] {
    if (--gathering->left == 0) {
      gathering->then(gathering->parts);
    }
  };
  for (const FuturePointer& part : gathering->parts) {
    part->addCallback([one_less](Future&) { one_less(); }, false);
  }
  one_less();  // also covers the case of no futures
}

void concatenate(const Futures& parts, Future& whole) {
  // For each device, the combined future records a stream that has waited for the parts.
  std::vector<c10::Stream> streams;
  for (const c10::Device device : whole.devices()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    streams.push_back(guard.getStreamFromGlobalPool(device));
  }
  const c10::MultiStreamGuard on_streams(streams);
  std::vector<at::Tensor> result;
  for (const FuturePointer& part : parts) {
    if (part->hasError()) {
      whole.setError(part->exception_ptr());
      return;
    }
    part->wait();  // waits only on its streams; it is complete
    const std::vector<at::Tensor> tensors = part->value().toTensorVector();
    result.insert(result.end(), tensors.begin(), tensors.end());
  }
  whole.markCompleted(c10::IValue(std::move(result)));
}

/// Returns the worst of c10d::WorkResults: an error that ended the group outranks an error that it
/// survived, and that outranks success.
std::int64_t worst(const Futures& parts) {
  const auto badness = [](const FuturePointer& part) {
    switch (static_cast<c10d::WorkResult>(part->value().toInt())) {
      case c10d::WorkResult::SUCCESS:
        return 0;
      case c10d::WorkResult::UNKNOWN:
        return 1;
      case c10d::WorkResult::TIMEOUT:
      case c10d::WorkResult::COMM_ERROR:
        break;
    }
    return 2;
  };
  const auto found = std::ranges::max_element(parts, {}, badness);  // the first of equal results
  return found == parts.end() ? static_cast<std::int64_t>(c10d::WorkResult::SUCCESS)
                              : (*found)->value().toInt();
}

bool has_succeeded(TimedWork& work) {
  try {
    return work.isCompleted() && work.isSuccess();
  } catch (const c10::Error&) {  // a device has failed, which wait() reports
    return false;
  }
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
  Futures parts;
  std::vector<c10::Device> devices;
  for (const auto& work : works_) {
    parts.push_back(work->getFuture());
    for (const c10::Device device : parts.back()->devices()) {
      if (std::ranges::find(devices, device) == devices.end()) {
        devices.push_back(device);
      }
    }
  }
  future_ = c10::make_intrusive<Future>(c10::ListType::ofTensors(), std::move(devices));
  for (const auto& work : works_) {
    work->is_part_of(future_);
  }
  when_all(std::move(parts), [whole = future_](const Futures& each) { concatenate(each, *whole); });
  return future_;
}

FuturePointer CoalescedWork::getFutureResult() {
  Futures parts;
  for (const auto& work : works_) {
    parts.push_back(work->getFutureResult());
  }
  auto result = c10::make_intrusive<Future>(c10::IntType::get());
  when_all(std::move(parts), [result](const Futures& each) { result->markCompleted(worst(each)); });
  return result;
}

uint64_t CoalescedWork::getSequencenumber() const {
  uint64_t last = 0;
  for (const auto& work : works_) {
    last = std::max(last, work->getSequencenumber());
  }
  return last;
}

float CoalescedWork::getDuration() const {
  std::optional<TimedWork::Span> all;
  for (const auto& work : works_) {
    const TimedWork::Span one = work->span();
    all = all ? all->and_of(one) : one;
  }
  return all ? all->milliseconds() : 0;
}

void Window::open() {
  std::optional<Called> left;  // freed without the lock
  const std::lock_guard lock(mutex_);
  if (called_ && called_->raised) {
    left = std::exchange(called_, std::nullopt);
  }
  if (!called_) {
    called_.emplace();
  }
}

Works Window::close() {
  Works works;
  {
    const std::lock_guard lock(mutex_);
    works = std::exchange(called_, std::nullopt).value_or(Called()).works;
  }
  for (const auto& work : works) {
    if (auto* const past = dynamic_cast<PastWorks*>(work.get())) {
      past->hold();
    }
  }
  return works;
}

Works Window::note(const c10::intrusive_ptr<GtopkWork>& work) {
  const std::lock_guard lock(mutex_);
  if (!called_) {
    return {};
  }
  called_->works.push_back(work);
  if (++called_->held < called_->release_at) {
    return {};
  }
  return called_->release();
}

void Window::raised() {
  const std::lock_guard lock(mutex_);
  if (called_) {
    called_->raised = true;
    called_->release_at = 0;
  }
}

Works Window::Called::release() {
  Works let_go;
  Works kept;
  held = 0;
  PastWorks* last = nullptr;  // the last element of `kept`, if it is a PastWorks
  for (auto& work : works) {
    auto* const past = dynamic_cast<PastWorks*>(work.get());
    if (past == nullptr && !has_succeeded(*work)) {
      ++held;
      last = nullptr;
      kept.push_back(std::move(work));
      continue;
    }
    if (last == nullptr && past != nullptr) {
      last = past;
      kept.push_back(std::move(work));
      continue;
    }
    if (last == nullptr) {
      auto next = c10::make_intrusive<PastWorks>();
      last = next.get();
      kept.push_back(std::move(next));
    }
    last->add(*work);
    let_go.push_back(std::move(work));
  }
  works = std::move(kept);
  release_at = std::max(raised ? 1 : kMany, 2 * held);
  return let_go;
}

NotesError::~NotesError() {
  if (std::uncaught_exceptions() > exceptions_) {
    window_.raised();
  }
}

}  // namespace gtopk::torch_backend
