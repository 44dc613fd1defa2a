// Torch backend: a sparse all-reduce in which no rank selects, of tensors that stay on their
// device. Sums are made in pinned memory: of all of acc, which is written there when the operation
// is called, or of what the operation asks for while it runs. See gtopk/device_acc.hpp.
#pragma once

#include <cstdint>
#include <memory>

#include "gtopk/collectives.hpp"
#include "src/torch_backend/acc_kernels.hpp"
#include "src/torch_backend/sparse_on_device.hpp"

namespace gtopk::torch_backend {

class DeviceAcc final : public SparseOnDevice {
 public:
  /// Null if the call's algorithm has no way on a device. Throws Error{kInvalidArgument} for an
  /// invalid call.
  [[nodiscard]] static std::shared_ptr<DeviceAcc> of(const cuda::Calls& kernels,
                                                     const DeviceTensors& tensors,
                                                     const SparseOptions& options,
                                                     std::uint32_t ranks);

  DeviceAcc(const cuda::Calls& kernels, const DeviceTensors& tensors, const AccRoom& room,
            double divisor);

  void begin() override;
  [[nodiscard]] bool works_meanwhile() const override { return !room_.whole; }
  [[nodiscard]] Collective collective(const SparseOptions& options,
                                      const Delivered& delivered) const override;
  void commit(const c10::Stream& stream) const override;

 private:
  void lay_out();

  DeviceVector vector_;
  const AccRoom room_;
  const double divisor_;
  AccOnDevice lists_;
  std::unique_ptr<AccKernels> kernels_;  ///< if the operation asks for more
};

}  // namespace gtopk::torch_backend
