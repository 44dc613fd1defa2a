// Torch backend: threads for work that the engine thread must not do: copying results back,
// completing futures, releasing tensors. Callbacks of futures run user Python code, which may hold
// the GIL indefinitely, or wait for another future.
//
// So no job waits for another, a thread that takes a job first makes sure that another thread
// watches the queue. Jobs start in submission order; several may run at once.
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
  /// Waits at most 3 s for submitted jobs; a job that is still running (a callback that never
  /// returns) is abandoned. If it is called from a job, it does not wait for that job. The caller
  /// must not hold the GIL.
  ~Completer();

  /// At process exit, waits at most 3 s until no thread is returning from a callback that destroyed
  /// its completer, because taking the GIL of a finalized interpreter would end the process. The
  /// caller must not hold the GIL.
  static void wait_for_stragglers();

  /// Thread-safe; does not block. Exceptions from jobs are logged.
  void run(std::function<void()> job);

 private:
  struct ThreadPool;
  std::shared_ptr<ThreadPool> pool_;  // shared with the threads, which may outlive the completer
};

}  // namespace gtopk::torch_backend
