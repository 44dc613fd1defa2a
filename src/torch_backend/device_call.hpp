// Torch backend: one operation on tensors of a device: its input has been read into pinned memory,
// its results are written from there, and what waits for it is a stream.
//
// All copies are handed to the device when the operation is called: those of the results wait, on
// the device, for a number in the host's memory, which the engine's thread writes when the network
// has done its part. So nobody has to come back to the driver, and `wait()` holds up the current
// stream and not the host. With GTOPK_BLOCKING_WAIT=1 the results are copied by a thread when they
// are there, and `wait()` blocks and raises what went wrong, as on the CPU.
#pragma once

#include <c10/core/Event.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "src/torch_backend/contiguous.hpp"
#include "src/torch_backend/device_lanes.hpp"

namespace gtopk::torch_backend {

/// The first error of a group's operations that ended when nobody was waiting for them.
class UnseenError {
 public:
  void note(std::exception_ptr error);
  /// Throws it, once.
  void raise();
  /// Somebody has seen this one.
  void forget(const std::exception_ptr& error);

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

class DeviceCall {
 public:
  /// Null for tensors of the CPU. Throws ValueError where they are on several devices.
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

  /// Hands more to the stream that has the results, which is current then, before them. Before
  /// begin().
  void also_write(std::function<void(const c10::Stream& stream)> write) {
    also_write_ = std::move(write);
  }
  /// Results are copied when the operation has ended, by a thread: no stream waits for that. For
  /// operations that end after others which are still to be read. Before begin().
  void copy_late() { ahead_ = false; }
  /// What the operation waits for.
  [[nodiscard]] const std::shared_ptr<Gate>& input() const { return input_; }
  /// The operation has been queued: hands the copies to the device. Decides the gate in any case.
  void begin(const std::vector<Contiguous>& memory);
  /// The network has done its part; a thread that may block. Where results are not copied ahead.
  void copy_back(const std::vector<Contiguous>& memory);
  /// The operation has ended, well or not. Once; any thread, without the driver.
  void ended() noexcept;

  /// Whether the copies of the results are handed to the device when the operation begins.
  [[nodiscard]] bool copies_ahead() const { return ahead_; }
  /// What the caller's current stream is given from here on finds the results in place.
  void block_current_stream() const;
  /// Whether the device has come so far.
  [[nodiscard]] bool has_results() const;
  /// The stream that has the results.
  [[nodiscard]] c10::Stream stream() const { return ticket_.stream; }
  [[nodiscard]] c10::Device device() const { return lanes_.device(); }

 private:
  void write(const std::vector<Contiguous>& memory);

  Lanes& lanes_;
  bool ahead_;
  const std::shared_ptr<Gate> input_ = std::make_shared<Gate>(1);
  const Lanes::Ticket ticket_;
  c10::Event called_;   // on the caller's stream
  c10::Event written_;  // on the ticket's
  std::function<void(const c10::Stream&)> also_write_;
  bool redeemed_ = false;
};

}  // namespace gtopk::torch_backend
