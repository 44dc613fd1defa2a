#include "src/gpu/watch.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <utility>

namespace gtopk::gpu {
namespace {

// These are values of CUresult.
constexpr Driver::Result kDeinitialized = 4;  // the process is exiting
// From this value on, errors mean that a graph is being captured; the device works.
constexpr Driver::Result kFirstOfCaptures = 900;
constexpr Driver::Result kLastOfCaptures = 908;

/// The value of CU_STREAM_CAPTURE_MODE_RELAXED.
constexpr int kRelaxed = 2;

bool says_failed(Driver::Result result) {
  return result != 0 && result != Driver::kNotReady && result != kDeinitialized &&
         (result < kFirstOfCaptures || result > kLastOfCaptures);
}

}  // namespace

Watch::Watch(const Driver& driver, Driver::Stream stream, std::string device,
             std::function<void()> make_current, std::chrono::milliseconds period)
    : driver_(driver),
      stream_(stream),
      device_(std::move(device)),
      make_current_(std::move(make_current)),
      period_(period),
      thread_([this] { loop(); }) {
  pthread_setname_np(thread_.native_handle(), "gtopk-watch");
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

Watch::Number Watch::expect(Failed failed) {
  const std::lock_guard lock(mutex_);
  const Number number = next_++;
  waiting_.emplace(number, std::move(failed));
  if (std::exchange(asleep_, false)) {
    changed_.notify_one();
  }
  return number;
}

void Watch::forget(Number number) noexcept {
  decltype(waiting_)::node_type let_go;  // freed after the mutex is released
  const std::lock_guard lock(mutex_);
  let_go = waiting_.extract(number);
}

void Watch::loop() {
  std::unique_lock lock(mutex_);
  while (!stops_) {
    if (waiting_.empty()) {
      asleep_ = true;
      changed_.wait(lock, [this] { return stops_ || !asleep_; });
    }
    const Number later = next_;
    changed_.wait_for(lock, period_, [this] { return stops_; });
    if (stops_ || waiting_.empty() || waiting_.begin()->first >= later) {
      continue;
    }
    lock.unlock();
    const std::optional<std::string> why = ask();
    decltype(waiting_) told;
    lock.lock();
    if (why) {
      failed_ = true;
      told.swap(waiting_);
    }
    lock.unlock();
    for (const auto& [number, failed] : told) {
      failed(*why);
    }
    told.clear();
    lock.lock();
  }
}

std::optional<std::string> Watch::ask() {
  if (!is_current_) {
    try {
      make_current_();
    } catch (const std::exception& error) {
      return fmt::format("{} has failed: {}", device_, error.what());
    }
    // Otherwise the query would break a graph that another thread captures.
    int mode = kRelaxed;
    static_cast<void>(driver_.exchange_capture_mode(&mode));
    is_current_ = true;
  }
  const Driver::Result result = driver_.query_stream(stream_);
  if (!says_failed(result)) {
    return std::nullopt;
  }
  return fmt::format("{} has failed: {} ({})", device_, driver_.name_of(result), result);
}

}  // namespace gtopk::gpu
