// Torch backend: Python's signal handlers, for a main thread that waits. No Python header is
// included, as in gil.hpp.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>

// Declared as in every pybind11, which lets such an exception set Python's error itself. torch's
// pybind11 knows it by its name. NOLINTBEGIN(readability-identifier-naming)
namespace pybind11 {
class __attribute__((visibility("default"))) builtin_exception : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual void set_error() const = 0;
};
}  // namespace pybind11
// NOLINTEND(readability-identifier-naming)

namespace gtopk::torch_backend {

/// The exception that a signal handler in Python raised, such as KeyboardInterrupt. Python gets it
/// unchanged.
class HandlerRaised final : public pybind11::builtin_exception {
 public:
  struct PythonError;
  explicit HandlerRaised(std::shared_ptr<PythonError> error);
  void set_error() const override;  ///< requires the GIL

 private:
  std::shared_ptr<PythonError> error_;
};

/// Runs the handlers of signals that have arrived, and throws HandlerRaised if one raises. Does
/// nothing except on the process's main thread, and only if that runs Python. Takes the GIL.
void run_signal_handlers();

/// The time that a thread waits before it checks for signals, and between two checks.
constexpr std::chrono::milliseconds kSignalsEvery(100);

/// Like condition.wait_until(lock, end, done), but runs signal handlers meanwhile, without the
/// lock.
template <class Done>
bool wait_until(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                std::chrono::steady_clock::time_point end, Done done) {
  using Clock = std::chrono::steady_clock;
  while (!condition.wait_until(lock, std::min(end, Clock::now() + kSignalsEvery), done)) {
    if (Clock::now() >= end) {
      return false;
    }
    lock.unlock();
    run_signal_handlers();
    lock.lock();
  }
  return true;
}

}  // namespace gtopk::torch_backend
