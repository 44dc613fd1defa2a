// GPU room: a thread that notices when a device has failed: a kernel's illegal access, an
// uncorrectable error in its memory. From then on every call of the driver returns an error, and it
// calls no host function any more: nobody who waits for one would ever be told.
//
// While somebody waits, the thread asks the driver about a stream, twice a second; and not before
// the first has waited for half a second. It never waits for the device.
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

  /// A stream of the device, of any work; its name, for messages. make_current: makes the device
  /// that of the watch's thread; called there, before it first asks. If it throws, the device has
  /// failed.
  Watch(const Driver& driver, Driver::Stream stream, std::string device,
        std::function<void()> make_current, std::chrono::milliseconds period = kPeriod);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  Watch(Watch&&) = delete;
  Watch& operator=(Watch&&) = delete;
  ~Watch();

  // Any thread; neither calls the driver.

  /// `failed` is called if the device fails before forget(): once, on the watch's thread, where it
  /// may block.
  [[nodiscard]] Number expect(Failed failed);
  /// Does not wait for a call that has begun.
  void forget(Number number) noexcept;

  /// Whether it is known; true before anybody is told.
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
  bool is_current_ = false;  // of the thread
  std::atomic<bool> failed_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Number, Failed> waiting_;
  Number next_ = 0;
  bool asleep_ = false;  ///< until somebody waits
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace gtopk::gpu
