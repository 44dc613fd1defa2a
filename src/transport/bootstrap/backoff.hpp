// Bootstrap: how long each wait in the store lasts. Waits are short at first, so that changes are
// seen soon, and then longer, so that thousands of ranks can wait at one store.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "src/transport/base/clock.hpp"

namespace gtopk::meeting {

class Backoff {
 public:
  Backoff(transport::Duration at_most, transport::Duration first, transport::Duration longest)
      : whole_(at_most),
        end_(std::chrono::steady_clock::now() + std::min<transport::Duration>(at_most, kForever)),
        first_(first),
        longest_(longest),
        slice_(first) {}

  /// The time from the beginning to the end.
  [[nodiscard]] transport::Duration whole() const { return whole_; }
  [[nodiscard]] bool over() const { return std::chrono::steady_clock::now() >= end_; }
  /// The length of the next wait, which never goes past the end.
  [[nodiscard]] transport::Duration slice() const {
    const transport::Duration rest = end_ - std::chrono::steady_clock::now();
    return std::clamp<transport::Duration>(rest, std::chrono::milliseconds(1), slice_);
  }
  void waited_in_vain() {
    slice_ = std::min(slice_ * 2, longest_);
    // Stores hold a lock while they wait, so let another thread that uses the same store take it
    // now.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void heard_something() { slice_ = first_; }

 private:
  static constexpr std::chrono::hours kForever{24 * 365};

  transport::Duration whole_;
  transport::TimePoint end_;
  transport::Duration first_;
  transport::Duration longest_;
  transport::Duration slice_;
};

}  // namespace gtopk::meeting
