// Torch backend: detects that a thread waits, because it sleeps and has used no CPU time lately.
#pragma once

#include <pthread.h>
#include <sys/types.h>
#include <time.h>

#include <cstdint>

namespace gtopk::torch_backend {

/// Observes the thread that made it, from other threads, while that thread lives. Not thread-safe.
class IdleThread {
 public:
  IdleThread();

  /// Returns how many looks in a row, including this one, have found the thread continuously
  /// asleep. A thread that waits for the GIL wakes every few milliseconds, so it does not count. A
  /// thread that is ready to run but gets no core does not count either.
  int look();
  /// Whether it has slept since the last look.
  [[nodiscard]] bool still_asleep() const;
  /// Restarts the count.
  void restart() { looks_ = 0; }

 private:
  [[nodiscard]] std::int64_t cpu_nanoseconds() const;
  [[nodiscard]] bool sleeps() const;

  pid_t id_;
  clockid_t clock_{};
  std::int64_t used_ = -1;  ///< CPU time used at the last look
  int looks_ = 0;
};

}  // namespace gtopk::torch_backend
