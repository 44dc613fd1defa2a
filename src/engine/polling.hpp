// Engine: decides whether a waiting thread polls for a moment before it sleeps. Waking a sleeping
// thread takes longer than a small message. But if ranks share cores, a polling thread keeps a core
// from the threads for which it waits. Yielding does not help: Linux 6.18 may return from
// sched_yield() to the same thread for a whole slice, and where it does not, polling ends only when
// the other threads' slices do. So the outcome of recent polls decides. It uses no clock and no
// threads; the caller reports outcomes.
#pragma once

#include <algorithm>
#include <atomic>

namespace gtopk::engine {

class Polling {
 public:
  /// The number of polls that are judged together.
  static constexpr int kTrial = 16;
  /// Waits without polling before the next trial; their number doubles after each failed trial.
  static constexpr int kFewestRests = 16;
  static constexpr int kMostRests = 1024;

  /// Whether the next wait should begin with polling. Any thread.
  [[nodiscard]] bool pays() const { return pays_.load(std::memory_order_relaxed); }

  /// Reports that polling has ended. `in_time` is true if the awaited event came and the core was
  /// not lost meanwhile.
  void looked(bool in_time) {
    in_time_ += in_time ? 1 : 0;
    if (++looks_ < kTrial) {
      return;
    }
    if (2 * in_time_ >= kTrial) {
      rests_planned_ = kFewestRests;
    } else {
      rests_left_ = rests_planned_;
      rests_planned_ = std::min(2 * rests_planned_, kMostRests);
      pays_.store(false, std::memory_order_relaxed);
    }
    looks_ = 0;
    in_time_ = 0;
  }

  /// Reports that a wait has begun without polling.
  void rested() {
    if (!pays() && --rests_left_ == 0) {
      pays_.store(true, std::memory_order_relaxed);
    }
  }

 private:
  std::atomic<bool> pays_{true};
  int looks_ = 0;
  int in_time_ = 0;
  int rests_left_ = 0;
  int rests_planned_ = kFewestRests;
};

}  // namespace gtopk::engine
