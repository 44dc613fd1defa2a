// Torch backend: a sparse all-reduce of tensors that stay on their device, by an algorithm in which
// ranks select. The selection is made there, lists of entries go to the core and back in pinned
// memory, and the resulting edits are applied there. Nothing of the tensor's size is copied. See
// gtopk/detached.hpp. Where the network takes the device's memory, the lists stay there, too: see
// gtopk/device_lists.hpp. A call that leaves its algorithm to `auto` begins the same way; if that
// chooses to sum all of acc, it is asked for while the operation runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "gtopk/collectives.hpp"
#include "src/cuda/calls.hpp"
#include "src/torch_backend/acc_kernels.hpp"
#include "src/torch_backend/device_lists.hpp"
#include "src/torch_backend/sparse_on_device.hpp"

namespace gtopk::torch_backend {

class DeviceStep final : public SparseOnDevice {
 public:
  /// Null if the algorithm or selector has no kernel, or the lists would be longer than the tensor.
  /// Throws Error{kInvalidArgument} for an invalid call.
  [[nodiscard]] static std::shared_ptr<DeviceStep> of(const cuda::Calls& kernels,
                                                      const DeviceTensors& tensors,
                                                      const SparseOptions& options,
                                                      std::uint32_t ranks);

  /// `lists`: the room of lists that stay. `sums`: of `auto`, the room of acc.
  DeviceStep(const cuda::Calls& kernels, const DeviceTensors& tensors, const SparseOptions& options,
             const SelectionRule& rule, const DetachedRoom& room,
             const std::optional<DeviceListRoom>& lists, const std::optional<AccRoom>& sums,
             std::uint32_t ranks);

  void begin() override;
  /// Whether lists stay on the device, where nodes are made, or acc may be asked for.
  [[nodiscard]] bool works_meanwhile() const override { return list_room_ || sum_room_; }
  [[nodiscard]] Collective collective(const SparseOptions& options,
                                      const Delivered& delivered) const override;
  void commit(const c10::Stream& stream) const override;

  DeviceStep(const DeviceStep&) = delete;
  DeviceStep& operator=(const DeviceStep&) = delete;
  DeviceStep(DeviceStep&&) = delete;
  DeviceStep& operator=(DeviceStep&&) = delete;
  ~DeviceStep() override;

 private:
  void lay_out();
  /// Has the selector's state read when the input stream gets there: the step before this one
  /// writes it when it ends.
  void read_state();
  void in_use_on(const c10::Stream& stream) const;

  DeviceVector vector_;
  const double divisor_;
  const SelectionRule rule_;
  const DetachedRoom room_;
  const std::optional<DeviceListRoom> list_room_;
  const std::optional<AccRoom> sum_room_;
  Detached lists_;
  AccOnDevice sums_;  ///< if there is room for them
  std::unique_ptr<AccKernels> kernels_;
  SelectorState* last_state_ = nullptr;
  SelectorState* next_state_ = nullptr;
  std::shared_ptr<std::atomic<bool>> state_read_;  ///< null: nobody reads it
  std::unique_ptr<DeviceLists> there_;             ///< instead, if they stay
};

}  // namespace gtopk::torch_backend
