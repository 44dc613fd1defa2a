// Torch backend: a sparse all-reduce of tensors that stay on their device: the memory and the
// streams of a gpu::Step (src/gpu/step.hpp). Nothing of the tensor's size is copied, unless ranks
// sum all of it.
//
// The selection is enqueued when the operation is called. What the operation requests while it runs
// is enqueued by a launcher. The commit, which reads what the core has written, is enqueued like
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
  /// Whether the result's entries are to be recorded.
  bool noted = false;
};

class SparseOnDevice {
 public:
  /// Null if the call has to be staged: there are no kernels for the device, tensors are not
  /// contiguous, or it cannot stay there (gpu::device_path_of()). Throws Error{kInvalidArgument}
  /// for an invalid call.
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

  /// Allocates memory, and enqueues what the operation starts from, after the work on the caller's
  /// current stream. While a graph is captured, throws NotImplementedError before it allocates
  /// anything.
  void begin();
  /// Enqueues the work between begin() and the operation's start, once it has its number.
  void follow(std::uint64_t number);
  /// Whether the operation asks a launcher for more work while it runs.
  [[nodiscard]] bool asks() const { return step_.path().asks(); }
  /// The operation, which starts once what begin() and follow() have enqueued is done.
  [[nodiscard]] Collective collective(const SparseOptions& options,
                                      const Delivered& delivered) const {
    return step_.collective(options, delivered);
  }
  /// Enqueues the commit on the current stream, after the operation's end.
  void commit(const c10::Stream& stream) const;

 private:
  /// Separate from the call's tensors: a launcher releases it, which must not wait for Python.
  struct Blocks {
    at::Tensor pinned;
    at::Tensor on_device;
  };

  void lay_out();
  /// Has the selector's state read when the input stream gets there, as the previous step writes it
  /// when it ends.
  void read_state();
  /// Notes what the stream, which is current, uses of the call: torch tracks what is copied, but
  /// not what kernels read.
  void in_use_on(const c10::Stream& stream) const;
  void hold(const at::Tensor& pinned) const;

  const DeviceTensors tensors_;
  const std::optional<std::uint64_t> seed_;
  DeviceStreams& streams_;
  gpu::Step step_;
  /// Recorded on the input stream, after begin() and follow(). An operation that fails before it
  /// starts ends before they are done, and work enqueued after its end reads the table of pieces.
  c10::Event laid_;
  std::shared_ptr<Blocks> blocks_ = std::make_shared<Blocks>();
  std::shared_ptr<std::atomic<bool>> state_read_;  ///< null: nothing reads it
};

}  // namespace gtopk::torch_backend
