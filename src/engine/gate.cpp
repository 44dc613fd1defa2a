#include "gtopk/gate.hpp"

#include <iterator>
#include <utility>

#include "gtopk/error.hpp"

namespace gtopk {

Gate::Gate(std::uint32_t arrivals) : arrivals_(arrivals), missing_(arrivals) {
  if (arrivals == 0) {
    throw Error(ErrorKind::kInvalidArgument, "a gate needs at least one arrival, got 0");
  }
}

void Gate::arrive(bool happened) {
  const std::lock_guard lock(mutex_);
  if (verdict_) {
    return;
  }
  all_happened_ = all_happened_ && happened;
  if (--missing_ == 0) {
    decide(all_happened_);
  }
}

bool Gate::shut() {
  const std::lock_guard lock(mutex_);
  if (!verdict_) {
    decide(false);
  }
  return *verdict_;
}

std::optional<bool> Gate::verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

/// Calls the waiters with the lock held, so that none is running when forget() returns.
void Gate::decide(bool happened) {
  verdict_ = happened;
  for (const std::function<void()>& waiter : waiters_) {
    waiter();
  }
}

Gate::Waiters::iterator Gate::when_decided(std::function<void()> then) {
  const std::lock_guard lock(mutex_);
  waiters_.push_back(std::move(then));
  if (verdict_) {
    waiters_.back()();
  }
  return std::prev(waiters_.end());
}

void Gate::forget(Waiters::iterator waiter) {
  const std::lock_guard lock(mutex_);
  waiters_.erase(waiter);
}

}  // namespace gtopk
