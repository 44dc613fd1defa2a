// Torch backend: one operation on device tensors: its input is copied to pinned memory, its results
// are copied back from there, and a stream waits for them.
//
// The copies of the inputs are enqueued when the operation is called. Those of the results are
// enqueued when somebody waits for them: they wait, on the device, for a flag in host memory, which
// the engine's thread sets when the network part is done. So `wait()` blocks the current stream
// rather than the host. If the operation ends before anybody waits, a thread copies the results.
// Before somebody waits, no stream does: streams may share a hardware queue, and what the caller or
// another group enqueues could be behind that wait.
// With GTOPK_BLOCKING_WAIT=1, and where streams cannot wait (DeviceStreams::may_wait()), a thread
// always copies the results, and `wait()` blocks and raises errors, as on the CPU.
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

/// The first error of a group's operations that ended when nobody was waiting for them.
class UnseenError {
 public:
  void note(std::exception_ptr error);
  /// Throws the error, once.
  void raise();
  /// This error has been seen.
  void forget(const std::exception_ptr& error);

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

class DeviceCall {
 public:
  /// Null for CPU tensors. Throws ValueError if they are on several devices.
  [[nodiscard]] static std::unique_ptr<DeviceCall> of(const std::vector<at::Tensor>& inputs,
                                                      const std::vector<Contiguous>& memory,
                                                      const std::vector<at::Tensor>& results);
  explicit DeviceCall(c10::Device device);
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;
  DeviceCall(DeviceCall&&) = delete;
  DeviceCall& operator=(DeviceCall&&) = delete;
  /// Not on the engine's thread.
  ~DeviceCall();

  /// Enqueues more work on the result stream, ahead of the results; that stream is current
  /// meanwhile. Call before begin().
  void also_write(std::function<void(const c10::Stream& stream)> write) {
    also_write_ = std::move(write);
  }
  /// Enqueues more work behind the operation's input, once it has been queued; the operation starts
  /// after that. Before begin().
  void also_read(std::function<void()> read) { also_read_ = std::move(read); }
  /// `failed` is called, on a thread that may block, if the device fails before the operation has
  /// ended: what that waits for never comes. Before it is queued.
  void watch(gpu::Watch::Failed failed);
  /// Whether it is known that the device has failed.
  [[nodiscard]] bool has_failed() const { return streams_.watch().has_failed(); }
  /// Results are copied when the operation has ended, by a thread: no stream waits for that. For
  /// operations that end after others which are still to be read. Before begin().
  void copy_late() { copying_ = Copying::kLate; }
  /// The operation enqueues more work while it runs: no stream waits for its results, nor for those
  /// of operations that begin before it has ended. Before begin().
  void works_meanwhile();
  /// What the operation waits for.
  [[nodiscard]] const std::shared_ptr<Gate>& input() const { return input_; }
  /// The operation has been queued: enqueues the copies. Decides the gate in any case.
  void begin();
  /// Somebody waits. Returns whether the copies of the results are enqueued now, so that a stream
  /// can wait for them; else they are copied late.
  [[nodiscard]] bool await(const std::vector<Contiguous>& memory);
  /// The operation has ended: nothing is enqueued ahead any more. Returns whether it was. Does not
  /// call the driver.
  bool close_copying() noexcept;
  /// The network part is done, and results were not enqueued ahead. On a thread that may block.
  void copy_back(const std::vector<Contiguous>& memory);
  /// The operation has succeeded or failed. Call once, on any thread; does not call the driver.
  void ended() noexcept;

  /// Whether the copies of the results were enqueued before the operation ended, as somebody
  /// waited.
  [[nodiscard]] bool copies_ahead() const { return copying_ == Copying::kAhead; }
  /// Work enqueued on the caller's current stream after this finds the results in place.
  void block_current_stream() const;
  /// Whether the device has got that far. Throws torch's error if the device has failed.
  [[nodiscard]] bool has_results() const;
  /// The stream that has the results.
  [[nodiscard]] c10::Stream stream() const { return ticket_.stream; }
  [[nodiscard]] c10::Device device() const { return streams_.device(); }

 private:
  void redeem() noexcept;
  void write(const std::vector<Contiguous>& memory);
  /// Lets the result stream wait for the operation, and then copy.
  void write_ahead(const std::vector<Contiguous>& memory);

  enum class Copying : std::uint8_t {
    kOpen,   ///< whichever comes first: somebody who waits, or the end
    kAhead,  ///< somebody waits: before the operation ends
    kLate    ///< after that
  };

  DeviceStreams& streams_;
  std::atomic<Copying> copying_;
  std::mutex enqueuing_;
  std::atomic<bool> enqueued_ = false;
  bool works_ = false;
  std::optional<gpu::Watch::Number> watched_;
  const std::shared_ptr<Gate> input_ = std::make_shared<Gate>(1);
  const DeviceStreams::Ticket ticket_;
  c10::Event called_;   // on the caller's stream
  c10::Event written_;  // on the ticket's
  std::function<void()> also_read_;
  std::function<void(const c10::Stream&)> also_write_;
  bool redeemed_ = false;
};

}  // namespace gtopk::torch_backend
