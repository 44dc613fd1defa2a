// Torch backend: a sparse all-reduce of tensors that stay on their device, whichever way the call's
// algorithm goes: a selection made there (device_step.hpp), or sums of acc (device_acc.hpp).
//
// As with copies, everything is enqueued when the operation is called, unless it asks for more
// while it runs: the commit waits on the device for the operation's end, and then reads what the
// core has written.
#pragma once

#include <cstdint>
#include <memory>

#include "gtopk/collectives.hpp"
#include "src/torch_backend/device_vector.hpp"

namespace gtopk::torch_backend {

class SparseOnDevice {
 public:
  /// Null if the call has to be staged: there are no kernels for the device, tensors are not
  /// contiguous, algorithm or selector have no kernel, or the lists would be longer than the
  /// tensor. Throws Error{kInvalidArgument} for an invalid call.
  [[nodiscard]] static std::shared_ptr<SparseOnDevice> of(const DeviceTensors& tensors,
                                                          const SparseOptions& options,
                                                          std::uint32_t ranks);

  SparseOnDevice() = default;
  SparseOnDevice(const SparseOnDevice&) = delete;
  SparseOnDevice& operator=(const SparseOnDevice&) = delete;
  SparseOnDevice(SparseOnDevice&&) = delete;
  SparseOnDevice& operator=(SparseOnDevice&&) = delete;
  virtual ~SparseOnDevice() = default;

  /// Takes memory, and enqueues what the operation starts from, after the work of the caller's
  /// current stream. Throws NotImplementedError while a graph is captured, before it takes
  /// anything.
  virtual void begin() = 0;
  /// Whether the operation enqueues more while it runs.
  [[nodiscard]] virtual bool works_meanwhile() const = 0;
  /// The operation, which starts once what begin() has enqueued is done.
  [[nodiscard]] virtual Collective collective(const SparseOptions& options,
                                              const Delivered& delivered) const = 0;
  /// Enqueues the commit on the current stream, after the operation's end.
  virtual void commit(const c10::Stream& stream) const = 0;
};

}  // namespace gtopk::torch_backend
