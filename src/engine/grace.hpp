// Engine: how long those wait that end something which may be stuck. What ends together waits
// together: however many groups are stuck, destroying all of them takes the time of one.
#pragma once

#include <algorithm>
#include <mutex>

#include "src/transport/base/clock.hpp"

namespace gtopk::engine {

/// Any thread.
class Grace {
 public:
  /// Who begins so soon after a grace has run out belongs to it, and gets none.
  static constexpr transport::Duration kTogether = std::chrono::milliseconds(100);

  /// Until when the caller may wait; `length` from now, or less. To be followed by end().
  [[nodiscard]] transport::TimePoint begin(transport::TimePoint now, transport::Duration length) {
    const std::lock_guard lock(mutex_);
    if (waiting_++ == 0 && now > until_ + kTogether) until_ = now + length;
    return until_;
  }

  /// The caller waits no more; `in_vain`: its time was up.
  void end(transport::TimePoint now, bool in_vain) {
    const std::lock_guard lock(mutex_);
    --waiting_;
    if (in_vain) {
      until_ = std::max(until_, now);
    } else if (waiting_ == 0 && now < until_) {
      until_ = {};  // the next one gets all of its own
    }
  }

 private:
  std::mutex mutex_;
  int waiting_ = 0;
  transport::TimePoint until_{};
};

}  // namespace gtopk::engine
