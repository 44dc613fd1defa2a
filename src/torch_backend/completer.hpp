// Torch backend: threads for what the engine's thread must not do: copy results to where the caller
// wants them, complete futures, let go of tensors. Futures' callbacks run users' Python, which may
// hold the GIL for as long as it likes, or wait for another future.
//
// So no job waits for another: whoever takes one first makes sure that another thread watches the
// queue. Jobs start in the order in which they were handed in; several may run at once.
#pragma once

#include <functional>
#include <memory>

namespace gtopk::torch_backend {

class Completer {
 public:
  Completer();
  Completer(const Completer&) = delete;
  Completer& operator=(const Completer&) = delete;
  Completer(Completer&&) = delete;
  Completer& operator=(Completer&&) = delete;
  /// Waits until what was handed in has ended, for at most 3 s; a job that goes on (a callback that
  /// waits for ever) is left to itself. May be called by a job, which then is not waited for. The
  /// caller must not hold the GIL.
  ~Completer();

  /// At the process's end: waits, for at most 3 s, until no thread is on its way back from a
  /// callback in which its completer ended: taking the GIL of an interpreter that is gone would end
  /// the process. The caller must not hold the GIL.
  static void wait_for_stragglers();

  /// Any thread; does not wait. What jobs throw is logged.
  void run(std::function<void()> job);

 private:
  struct Crew;
  std::shared_ptr<Crew> crew_;  // the threads own it as well: one may outlive the completer
};

}  // namespace gtopk::torch_backend
