// Engine: decides how long to wait before ending something that may be stuck. Overlapping waits
// share one deadline, so destroying any number of stuck groups takes as long as destroying one.
#pragma once

#include <algorithm>
#include <mutex>

#include "src/transport/base/clock.hpp"

namespace gtopk::engine {

/// May be used on any thread.
class SharedDeadline {
 public:
  /// A wait that begins this soon after a deadline has passed belongs to it, and gets no time.
  static constexpr transport::Duration kTogether = std::chrono::milliseconds(100);

  /// The time until which the caller may wait: `length` from now, or less. The call must be
  /// followed by end().
  [[nodiscard]] transport::TimePoint begin(transport::TimePoint now, transport::Duration length) {
    const std::lock_guard lock(mutex_);
    if (waiting_++ == 0 && now > until_ + kTogether) {
      until_ = now + length;
    }
    return until_;
  }

  /// Reports that the caller has stopped waiting. `in_vain` is true if its time ran out.
  void end(transport::TimePoint now, bool in_vain) {
    const std::lock_guard lock(mutex_);
    --waiting_;
    if (in_vain) {
      until_ = std::max(until_, now);
    } else if (waiting_ == 0 && now < until_) {
      until_ = {};  // the next wait gets its full time
    }
  }

 private:
  std::mutex mutex_;
  int waiting_ = 0;
  transport::TimePoint until_{};
};

}  // namespace gtopk::engine
