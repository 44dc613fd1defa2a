// GPU: a thread that notices when a device has failed: a kernel's illegal access, an
// uncorrectable error in its memory. From then on every call of the driver returns an error, and it
// calls no host function any more, so that waiters for one would never be notified.
//
// While there are waiters, the thread queries a stream through the driver twice a second, but not
// before the first has waited for half a second. It never waits for the device.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "src/gpu/driver.hpp"

namespace gtopk::gpu {

class Watch {
 public:
  /// `why`: "GPU 0 has failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)".
  using Failed = std::function<void(const std::string& why)>;
  using Number = std::uint64_t;
  static constexpr std::chrono::milliseconds kPeriod{500};

  /// Takes any stream of the device; and the device's name, for messages. make_current: makes the
  /// device current on the watch's thread; called there, before the first query. If it throws, the
  /// device has failed.
  Watch(const Driver& driver, Driver::Stream stream, std::string device,
        std::function<void()> make_current, std::chrono::milliseconds period = kPeriod);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  Watch(Watch&&) = delete;
  Watch& operator=(Watch&&) = delete;
  ~Watch();

  // Any thread; neither function calls the driver.

  /// `failed` is called if the device fails before forget(): once, on the watch's thread, where it
  /// may block.
  [[nodiscard]] Number expect(Failed failed);
  /// Does not wait for a call that has begun.
  void forget(Number number) noexcept;

  /// Whether a failure is known; true before any waiter is notified.
  [[nodiscard]] bool has_failed() const { return failed_; }

 private:
  void loop();
  /// Why the device has failed; empty if it works.
  [[nodiscard]] std::optional<std::string> ask();

  const Driver& driver_;
  const Driver::Stream stream_;
  const std::string device_;
  const std::function<void()> make_current_;
  const std::chrono::milliseconds period_;
  bool is_current_ = false;  // on the watch's thread
  std::atomic<bool> failed_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Number, Failed> waiting_;
  Number next_ = 0;
  bool asleep_ = false;  ///< until there is a waiter
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace gtopk::gpu
