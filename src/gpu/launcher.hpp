// GPU room: a thread that calls the driver when the engine's must not: the driver may block it
// while another thread waits in the driver for a result that needs the engine. What is handed in is
// enqueued on one stream, in order, and its end is told from there. Nothing waits for the device.
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
    /// Enqueues the work on the stream; on the launcher's thread.
    std::function<void(Driver::Stream stream)> launch;
    /// Called once: when the device has done it, on a thread of the driver's, with null; else, with
    /// why it has not, on the launcher's or the watch's. Must not call the driver, nor block.
    std::function<void(std::exception_ptr)> done;
    /// Memory that the work uses; let go on the launcher's thread, after `done`. Never, if `launch`
    /// throws, as part of the work may be enqueued, or if the device fails.
    std::shared_ptr<void> memory;
    /// If set, takes memory and the like, ahead of `launch`; on the launcher's thread. If it
    /// throws, nothing is enqueued, and the memory goes.
    std::function<void()> prepare = nullptr;
  };

  /// make_current: makes the stream's device that of the launcher's thread; called there, first.
  /// `device`: its name, for messages. The watch is that of the device, and outlives the launcher.
  /// Throws nothing of the driver's.
  Launcher(const Driver& driver, Driver::Stream stream, std::string device,
           std::function<void()> make_current, Watch& watch);
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  Launcher(Launcher&&) = delete;
  Launcher& operator=(Launcher&&) = delete;
  /// Once the device has done all of it, or does nothing any more because of an error.
  ~Launcher();

  /// Any thread; does not call the driver.
  void run(Job job);

  /// "GPU 0", "cuda:0"
  [[nodiscard]] const std::string& device() const { return device_; }
  [[nodiscard]] const Driver& driver() const { return driver_; }

 private:
  struct Running;

  void loop();
  /// The next job, once there is one; null once there will be none.
  [[nodiscard]] std::optional<Job> next();
  void launch(Job job);
  /// Tells the end of a job, once. On a thread of the driver's; with `error`, on any other.
  static void end(Running& running, const std::exception_ptr& error) noexcept;
  /// The device does nothing any more.
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
  std::vector<std::shared_ptr<Running>> on_device_;  ///< jobs whose end has not been told
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace gtopk::gpu
