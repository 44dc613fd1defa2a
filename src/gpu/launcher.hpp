// GPU: a thread that calls the driver where the engine's thread must not, because the driver may
// block it while another thread waits in the driver for a result that needs the engine. Jobs are
// enqueued on one stream, in order, and report their end from there. No thread waits for the
// device.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "src/gpu/driver.hpp"
#include "src/gpu/watch.hpp"

namespace gtopk::gpu {

class Launcher {
 public:
  struct Job {
    /// Enqueues the work on the stream; called on the launcher's thread.
    std::function<void(Driver::Stream stream)> launch;
    /// Called once. When the device has done the work, it is called with null, on one of the
    /// driver's threads; otherwise it is called with the error, on the launcher's or the watch's
    /// thread. It must neither call the driver nor block.
    std::function<void(std::exception_ptr)> done;
    /// Memory that the work uses; released on the launcher's thread, after `done`. It is never
    /// released if the device fails or if `launch` throws, because part of the work may be
    /// enqueued.
    std::shared_ptr<void> memory;
    /// If set, allocates memory and the like before `launch`; called on the launcher's thread. If
    /// it throws, nothing is enqueued, and the memory is released.
    std::function<void()> prepare = nullptr;
  };

  /// `make_current` makes the stream's device current on the launcher's thread, where it is called
  /// first. `device` is its name, for messages. The watch belongs to the device and outlives the
  /// launcher. The constructor throws none of the driver's errors.
  Launcher(const Driver& driver, Driver::Stream stream, std::string device,
           std::function<void()> make_current, Watch& watch);
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  Launcher(Launcher&&) = delete;
  Launcher& operator=(Launcher&&) = delete;
  /// Waits until the device has done all of the work, or has stopped because of an error.
  ~Launcher();

  /// Runs a job. May be called on any thread; does not call the driver.
  void run(Job job);

  /// The device's name, such as "GPU 0" or "cuda:0".
  [[nodiscard]] const std::string& device() const { return device_; }
  [[nodiscard]] const Driver& driver() const { return driver_; }

 private:
  struct Running;

  void loop();
  /// Waits for the next job; returns nullopt once there will be none.
  [[nodiscard]] std::optional<Job> next();
  void launch(Job job);
  /// Reports the end of a job, once. Called on one of the driver's threads; with `error`, on any
  /// other.
  static void end(Running& running, const std::exception_ptr& error) noexcept;
  /// Ends all jobs when the device does nothing any more.
  void end_all(const std::exception_ptr& error) noexcept;

  const Driver& driver_;
  const Driver::Stream stream_;
  const std::string device_;
  const std::function<void()> make_current_;
  Watch& watch_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::vector<std::shared_ptr<void>> let_go_;
  std::vector<std::shared_ptr<Running>> on_device_;  ///< jobs whose end has not been reported
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace gtopk::gpu
