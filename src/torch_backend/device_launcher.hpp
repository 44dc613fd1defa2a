// Torch backend: a thread that calls the driver of one device when the engine's must not: the
// driver may block it while another thread waits in the driver for a result that needs the engine.
// What is handed in is enqueued on one stream, in order, and its end is told from there. Nothing
// waits for the device.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "src/torch_backend/device_driver.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

class Launcher {
 public:
  struct Job {
    /// Enqueues the work on the stream, which is current meanwhile; on the launcher's thread.
    std::function<void(const c10::Stream& stream)> launch;
    /// Called once: when the device has done it, on a thread of the driver's, with null; else, with
    /// why it has not, on the launcher's. Must not call the driver, nor block.
    std::function<void(std::exception_ptr)> done;
    /// Memory that the work uses; let go on the launcher's thread, after `done`. Never, if the work
    /// could not be enqueued: part of it may be.
    std::shared_ptr<void> memory;
  };

  /// For of(), which makes them.
  explicit Launcher(c10::Device device);
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  Launcher(Launcher&&) = delete;
  Launcher& operator=(Launcher&&) = delete;
  ~Launcher() = default;  // never: there is no device any more when the process's statics end

  /// Created at the first call, for the lifetime of the process. On a thread that may call the
  /// driver.
  [[nodiscard]] static Launcher& of(c10::Device device);

  /// Any thread; does not call the driver.
  void run(Job job);

 private:
  struct Running;

  void loop();
  void launch(Job job);
  /// On a thread of the driver's.
  void end(Running& running) noexcept;

  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  const DeviceDriver& driver_;
  const c10::Stream stream_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::vector<std::shared_ptr<void>> let_go_;
};

}  // namespace gtopk::torch_backend
