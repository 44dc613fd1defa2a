// Torch backend: the streams of one device on which tensors are copied between device memory and
// the pinned memory that the core reads and writes.
//
// One stream reads all inputs, so that they arrive in call order. Several others write results,
// which may wait for a network, so reading never waits for a result. No function here waits for a
// device. Functions are called on threads of the callers and the completer, never on the engine's,
// because a thread that waits for a result may hold a driver lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "gtopk/gate.hpp"
#include "src/gpu/watch.hpp"
#include "src/torch_backend/device_driver.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// Whether tensors on this device are copied to be reduced: CUDA, or its substitute in tests.
[[nodiscard]] bool is_served(c10::Device device);

/// Allocates host memory, which is pinned if it is for copies to or from a device.
[[nodiscard]] at::Tensor host_memory(at::IntArrayRef sizes, at::ScalarType type,
                                     c10::Device copied_with);
/// Does the same for a call that has not checked yet whether a graph is being captured. If one is,
/// throws NotImplementedError before it allocates anything.
[[nodiscard]] at::Tensor staging_memory(at::IntArrayRef sizes, at::ScalarType type,
                                        c10::Device copied_with);

class DeviceStreams {
 public:
  /// Used by of().
  explicit DeviceStreams(c10::Device device);
  /// Returns the streams, which are created at the first call for the lifetime of the process.
  /// Throws what torch, device_driver() and refuse_capture() throw, because creating them allocates
  /// pinned memory.
  [[nodiscard]] static DeviceStreams& of(c10::Device device);

  /// A counter in pinned memory that one operation increments once, and a stream that waits for
  /// that.
  struct Ticket {
    std::atomic<std::uint32_t>* flag = nullptr;
    std::uint32_t value = 0;
    c10::Stream stream;
    std::size_t number = 0;
  };

  /// Lets `give` enqueue work on the input stream, which is current meanwhile, after the work on
  /// the caller's current stream. Throws NotImplementedError while a graph is captured.
  void on_reading(const std::function<void(const c10::Stream& stream)>& give);
  /// Copies `from`, on the device, to pinned memory for the same number of elements, after the work
  /// on the caller's current stream. Throws NotImplementedError while a graph is captured.
  void read(const at::Tensor& to, const at::Tensor& from);
  /// Calls `run` on one of the driver's threads when all work given to the input stream so far is
  /// done. It must neither call the driver nor block. Throws DistBackendError if the driver cannot
  /// do that.
  void call_behind_reads(std::function<void()> run);
  /// Decides the gate when everything read so far has arrived. If that cannot be determined,
  /// decides that it has not happened.
  void arrive_behind_reads(const std::shared_ptr<Gate>& gate) noexcept;

  /// Throws NotImplementedError while a graph is captured. It must be called before allocating
  /// pinned memory, because a capture does not survive an allocation by the driver.
  void refuse_capture() const;

  [[nodiscard]] Ticket take_ticket();
  /// Releases everything that waits for the ticket, now or later. May be called on any thread; does
  /// not call the driver.
  void redeem(const Ticket& ticket) noexcept;
  /// After this, the ticket's stream continues once the ticket is redeemed.
  void wait_for(const Ticket& ticket);

  /// The stream of the launcher (device_launcher.hpp), separate from the others.
  [[nodiscard]] const c10::Stream& launching() const { return launching_; }
  /// Between `works` and `works_no_more` an operation enqueues work there while it runs. No stream
  /// may then wait for a result, because that work could be behind the wait in the same hardware
  /// queue.
  void works() noexcept { ++working_; }
  void works_no_more() noexcept { --working_; }
  /// Whether a stream may wait for a result now. It never may if the driver cannot make one wait,
  /// or if all streams share one hardware queue.
  [[nodiscard]] bool may_wait() const { return streams_can_wait_ && working_ == 0; }

  /// The device's watch, which notifies waiters if the device fails.
  [[nodiscard]] gpu::Watch& watch() { return watch_; }

  /// The caller's current stream.
  [[nodiscard]] c10::Stream current() const { return guard_.getStream(device_); }
  /// Tells the caching allocator that it may reuse the tensor's memory once the stream has reached
  /// this point.
  void in_use_on(const at::Tensor& tensor, c10::Stream stream) const;
  /// The driver's handle of the stream.
  [[nodiscard]] void* native(const c10::Stream& stream) const {
    return guard_.getStreamNativeHandle(stream);
  }
  [[nodiscard]] c10::Device device() const { return device_; }

 private:
  void check(gpu::Driver::Result result, const char* what) const;
  /// Whether streams of this device can wait for a number in memory without holding up others; the
  /// log says why not.
  [[nodiscard]] bool can_wait();
  /// Does the same on a thread that has called the runtime.
  void refuse_capture_here() const;

  struct ResultStream {
    c10::Stream stream;
    std::size_t operations = 0;
  };
  struct Flag {
    std::atomic<std::uint32_t>* number;
    std::uint32_t last;
  };

  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  const gpu::Driver& driver_;
  const c10::Stream reading_;
  const c10::Stream launching_;
  bool streams_can_wait_ = false;
  std::atomic<int> working_ = 0;
  gpu::Watch watch_;

  std::mutex mutex_;
  std::vector<ResultStream> streams_;
  std::vector<Flag> free_flags_;
  std::vector<at::Tensor> pages_;  // pages of flags
};

}  // namespace gtopk::torch_backend
