// Torch backend: one operation on device tensors: its input is copied to pinned memory, its results
// are copied back from there, and a stream waits for them.
//
// The copies of the inputs are enqueued when the operation is called. The copies of the results are
// enqueued when a caller waits for them: they wait, on the device, for a flag in host memory, which
// the engine's thread sets when the network part is done. So `wait()` blocks the current stream
// rather than the host. If the operation ends before any caller waits, a thread copies the results.
// Until a caller waits, no stream waits, because streams may share a hardware queue, and work that
// the caller or another group enqueues could be behind that wait. With GTOPK_BLOCKING_WAIT=1, and
// where streams cannot wait (DeviceStreams::may_wait()), a thread always copies the results, and
// `wait()` blocks and raises errors, as on the CPU.
#pragma once

#include <c10/core/Event.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "src/torch_backend/contiguous.hpp"
#include "src/torch_backend/device_streams.hpp"

namespace gtopk::torch_backend {

/// The first error among a group's operations that ended when no caller was waiting for them.
class UnseenError {
 public:
  void note(std::exception_ptr error);
  /// Throws the error, once.
  void raise();
  /// Forgets this error, which has been reported.
  void forget(const std::exception_ptr& error);

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

class DeviceCall {
 public:
  /// Makes the call; returns null for CPU tensors. Throws ValueError if they are on several
  /// devices.
  [[nodiscard]] static std::unique_ptr<DeviceCall> of(const std::vector<at::Tensor>& inputs,
                                                      const std::vector<Contiguous>& memory,
                                                      const std::vector<at::Tensor>& results);
  explicit DeviceCall(c10::Device device);
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;
  DeviceCall(DeviceCall&&) = delete;
  DeviceCall& operator=(DeviceCall&&) = delete;
  /// Must not be called on the engine's thread.
  ~DeviceCall();

  /// Enqueues more work on the result stream before the results; that stream is current meanwhile.
  /// Must be called before begin().
  void also_write(std::function<void(const c10::Stream& stream)> write) {
    also_write_ = std::move(write);
  }
  /// Enqueues more work after the operation's input, once it has been queued; the operation starts
  /// after that work. Must be called before begin().
  void also_read(std::function<void()> read) { also_read_ = std::move(read); }
  /// `failed` is called, on a thread that may block, if the device fails before the operation has
  /// ended, because its input then never arrives. Must be called before the operation is queued.
  void watch(gpu::Watch::Failed failed);
  /// Whether it is known that the device has failed.
  [[nodiscard]] bool has_failed() const { return streams_.watch().has_failed(); }
  /// Has a thread copy the results after the operation has ended, so that no stream waits for it.
  /// This is for operations that end after others whose inputs have yet to be read. Must be called
  /// before begin().
  void copy_late() { copying_ = Copying::kLate; }
  /// Declares that the operation enqueues more work while it runs. No stream then waits for its
  /// results, or for the results of operations that begin before it has ended. Must be called
  /// before begin().
  void works_meanwhile();
  /// The gate for which the operation waits.
  [[nodiscard]] const std::shared_ptr<Gate>& input() const { return input_; }
  /// Enqueues the copies of an operation that has been queued. It decides the gate in any case.
  void begin();
  /// Must be called when a caller waits. Returns whether the copies of the results are now
  /// enqueued, so that a stream can wait for them; otherwise they are copied late.
  [[nodiscard]] bool await(const std::vector<Contiguous>& memory);
  /// Must be called when the operation has ended, so that nothing more is enqueued ahead of its
  /// end. Returns whether copies were enqueued ahead. Does not call the driver.
  bool close_copying() noexcept;
  /// Copies results that were not enqueued ahead, after the network part. Must be called on a
  /// thread that may block.
  void copy_back(const std::vector<Contiguous>& memory);
  /// Must be called once when the operation has succeeded or failed, on any thread. Does not call
  /// the driver.
  void ended() noexcept;

  /// Whether a caller waited before the operation ended, so that the copies of the results were
  /// enqueued.
  [[nodiscard]] bool copies_ahead() const { return copying_ == Copying::kAhead; }
  /// Makes the caller's current stream wait, so that work enqueued on it afterwards finds the
  /// results in place.
  void block_current_stream() const;
  /// Whether the device has copied the results. Throws torch's error if the device has failed.
  [[nodiscard]] bool has_results() const;
  /// The stream on which the results are written.
  [[nodiscard]] c10::Stream stream() const { return ticket_.stream; }
  [[nodiscard]] c10::Device device() const { return streams_.device(); }

 private:
  void redeem() noexcept;
  void write(const std::vector<Contiguous>& memory);
  /// Makes the result stream wait for the operation and then copy.
  void write_ahead(const std::vector<Contiguous>& memory);

  enum class Copying : std::uint8_t {
    kOpen,   ///< undecided, until a caller waits or the operation ends
    kAhead,  ///< enqueued before the operation ends, as a caller waits
    kLate    ///< after the operation has ended
  };

  DeviceStreams& streams_;
  std::atomic<Copying> copying_;
  std::mutex enqueuing_;
  std::atomic<bool> enqueued_ = false;
  bool works_ = false;
  std::optional<gpu::Watch::Number> watched_;
  const std::shared_ptr<Gate> input_ = std::make_shared<Gate>(1);
  const DeviceStreams::Ticket ticket_;
  c10::Event called_;   // recorded on the caller's stream
  c10::Event written_;  // recorded on the ticket's stream
  std::function<void()> also_read_;
  std::function<void(const c10::Stream&)> also_write_;
  bool redeemed_ = false;
};

}  // namespace gtopk::torch_backend
