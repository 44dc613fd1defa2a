// GPU: a thread that notices when a device has failed: because of a kernel's illegal access or an
// uncorrectable memory error. From then on every driver call returns an error, and the driver calls
// no host functions any more, so waiters for one would never be notified.
//
// While there are waiters, the thread queries a stream through the driver twice a second, but not
// before the first waiter has waited for half a second. It never waits for the device.
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
  /// Called with the reason: "GPU 0 has failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)".
  using Failed = std::function<void(const std::string& why)>;
  using Number = std::uint64_t;
  static constexpr std::chrono::milliseconds kPeriod{500};

  /// Takes any stream of the device, and the device's name for messages. `make_current` makes the
  /// device current on the watch's thread, where it is called before the first query. If it throws,
  /// the device counts as failed.
  Watch(const Driver& driver, Driver::Stream stream, std::string device,
        std::function<void()> make_current, std::chrono::milliseconds period = kPeriod);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  Watch(Watch&&) = delete;
  Watch& operator=(Watch&&) = delete;
  ~Watch();

  // These may be called on any thread; neither calls the driver.

  /// Adds a waiter. If the device fails before forget(), `failed` is called once, on the watch's
  /// thread, where it may block.
  [[nodiscard]] Number expect(Failed failed);
  /// Removes a waiter. Does not wait for a call that has begun.
  void forget(Number number) noexcept;

  /// Whether a failure is known. It is set before any waiter is notified.
  [[nodiscard]] bool has_failed() const { return failed_; }

 private:
  void loop();
  /// Says why the device has failed; returns nullopt if it works.
  [[nodiscard]] std::optional<std::string> ask();

  const Driver& driver_;
  const Driver::Stream stream_;
  const std::string device_;
  const std::function<void()> make_current_;
  const std::chrono::milliseconds period_;
  bool is_current_ = false;  // whether the device is current on the watch's thread
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
