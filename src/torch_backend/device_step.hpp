// Torch backend: a sparse all-reduce of tensors that stay on their device. It selects there, lists
// of entries pass to the core and back in pinned memory, and what the core has worked out of them
// is applied there: nothing as long as the tensor crosses. See gtopk/detached.hpp.
//
// As with copies, all of it is handed to the device when the operation is called: the commit waits
// there for the operation's end, and reads then what the core has written.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gtopk/collectives.hpp"
#include "src/cuda/calls.hpp"
#include "src/torch_backend/device_lanes.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// The tensors of a call, on one device, and its arguments.
struct DeviceTensors {
  std::vector<at::Tensor> pieces;
  std::optional<at::Tensor> residual;
  std::optional<at::Tensor> momentum;
  std::uint64_t d = 0;
  DataType dtype = DataType::kFloat32;
};

class DeviceStep {
 public:
  /// Null where the call has to be staged: without kernels for the device, for tensors that are not
  /// contiguous, for algorithms and selectors that have none, and where the lists would be longer
  /// than the tensor. Throws Error{kInvalidArgument} for a call that no rank may make.
  [[nodiscard]] static std::shared_ptr<DeviceStep> of(const DeviceTensors& tensors,
                                                      const SparseOptions& options,
                                                      std::uint32_t ranks);

  DeviceStep(const cuda::Calls& kernels, DeviceTensors tensors, const SparseOptions& options,
             const DetachedRoom& room, std::uint32_t ranks);

  /// Hands the selection to the device, behind what the caller's current stream has been given.
  void select();
  /// What the operation reads once the selection has arrived, and writes.
  [[nodiscard]] const Detached& lists() const { return lists_; }
  /// Hands the commit to a stream, which is current, behind the operation's end.
  void commit(const c10::Stream& stream) const;

 private:
  void lay_out(const DetachedRoom& room);
  void check(int error, const char* what) const;
  /// The pinned memory is not given to others before the stream, which is current, comes here.
  void hold_pinned() const;

  const cuda::Calls& kernels_;
  Lanes& lanes_;
  const DeviceTensors tensors_;
  const double divisor_;
  const std::uint64_t k_;
  at::Tensor pinned_;  ///< lists, reports, and the table of pieces
  at::Tensor table_;   ///< that table on the device
  std::size_t table_at_ = 0;
  Detached lists_;
  cuda::VectorOf acc_;
};

}  // namespace gtopk::torch_backend
