// Torch backend: a sparse all-reduce of tensors that stay on their device: the memory and the
// streams of a gpu::Step (src/gpu/step.hpp). No data of the tensor's size is copied, unless ranks
// sum all of it.
//
// The selection is enqueued when the operation is called. Work that the operation requests while it
// runs is enqueued by a launcher. The commit, which reads the core's output, is enqueued like
// copies of results (device_call.hpp).
#pragma once

#include <c10/core/Event.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "src/gpu/step.hpp"
#include "src/torch_backend/device_call.hpp"
#include "src/torch_backend/device_streams.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// The tensors of a call, on one device, and its arguments.
struct DeviceTensors {
  std::vector<at::Tensor> pieces;
  std::optional<at::Tensor> residual;
  std::optional<at::Tensor> momentum;
  /// The selector's state, on the CPU.
  std::optional<at::Tensor> state;
  std::uint64_t d = 0;
  DataType dtype = DataType::kFloat32;
  /// Whether to record the result's entries.
  bool noted = false;
};

class SparseOnDevice {
 public:
  /// Makes the call. Returns null if it has to be staged because there are no kernels for the
  /// device, tensors are not contiguous, or it cannot stay on the device (gpu::device_path_of()).
  /// Throws Error{kInvalidArgument} for an invalid call.
  [[nodiscard]] static std::shared_ptr<SparseOnDevice> of(const DeviceTensors& tensors,
                                                          const SparseOptions& options,
                                                          std::uint32_t ranks);

  SparseOnDevice(const cuda::Calls& kernels, const DeviceTensors& tensors,
                 const gpu::DevicePath& path, std::optional<std::uint64_t> seed);
  SparseOnDevice(const SparseOnDevice&) = delete;
  SparseOnDevice& operator=(const SparseOnDevice&) = delete;
  SparseOnDevice(SparseOnDevice&&) = delete;
  SparseOnDevice& operator=(SparseOnDevice&&) = delete;
  ~SparseOnDevice();

  /// Allocates memory and enqueues the work before the operation, after the work on the caller's
  /// current stream. While a graph is captured, throws NotImplementedError before it allocates
  /// anything.
  void begin();
  /// Enqueues the work between begin() and the operation's start, once it has its number.
  void follow(std::uint64_t number);
  /// Whether the operation requests more work from a launcher while it runs.
  [[nodiscard]] bool asks() const { return step_.path().asks(); }
  /// Returns the operation, which starts once the work enqueued by begin() and follow() is done.
  [[nodiscard]] Collective collective(const SparseOptions& options,
                                      const Delivered& delivered) const {
    return step_.collective(options, delivered);
  }
  /// Enqueues the commit on the current stream, after the operation's end.
  void commit(const c10::Stream& stream) const;

 private:
  /// The memory of the step. It is separate from the call's tensors because a launcher releases it,
  /// which must not wait for Python.
  struct Blocks {
    at::Tensor pinned;
    at::Tensor on_device;
  };

  void lay_out();
  /// Enqueues reading the selector's state on the input stream, because the previous step writes it
  /// when it ends.
  void read_state();
  /// Records which tensors of the call the current stream uses: torch tracks tensors that are
  /// copied, but not tensors that kernels read.
  void in_use_on(const c10::Stream& stream) const;
  void hold(const at::Tensor& pinned) const;

  const DeviceTensors tensors_;
  const std::optional<std::uint64_t> seed_;
  DeviceStreams& streams_;
  gpu::Step step_;
  /// An event recorded on the input stream after begin() and follow(). An operation that fails
  /// before it starts ends before that work is done, and work enqueued after its end reads the
  /// table of pieces.
  c10::Event laid_;
  std::shared_ptr<Blocks> blocks_ = std::make_shared<Blocks>();
  std::shared_ptr<std::atomic<bool>> state_read_;  ///< null if nothing reads it
};

}  // namespace gtopk::torch_backend
