// Torch backend: the thread on which futures complete. Their callbacks run users' Python, which may
// hold the GIL for as long as it likes: the engine's thread must not wait for it. Tensors are let
// go of here as well.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace gtopk::torch_backend {

class Completer {
 public:
  Completer();
  Completer(const Completer&) = delete;
  Completer& operator=(const Completer&) = delete;
  Completer(Completer&&) = delete;
  Completer& operator=(Completer&&) = delete;
  /// Finishes what was handed in. The caller must not hold the GIL.
  ~Completer();

  /// Any thread. Jobs run in order; what they throw is logged.
  void run(std::function<void()> job);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace gtopk::torch_backend
