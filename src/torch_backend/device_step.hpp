// Torch backend: a sparse all-reduce of tensors that stay on their device. The selection is made
// there, lists of entries go to the core and back in pinned memory, and the resulting edits are
// applied there. Nothing of the tensor's size is copied. See gtopk/detached.hpp.
//
// As with copies, everything is enqueued when the operation is called: the commit waits on the
// device for the operation's end, and then reads what the core has written.
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
  /// Null if the call has to be staged: there are no kernels for the device, tensors are not
  /// contiguous, the algorithm or selector has no kernel, or the lists would be longer than the
  /// tensor. Throws Error{kInvalidArgument} for an invalid call.
  [[nodiscard]] static std::shared_ptr<DeviceStep> of(const DeviceTensors& tensors,
                                                      const SparseOptions& options,
                                                      std::uint32_t ranks);

  DeviceStep(const cuda::Calls& kernels, DeviceTensors tensors, const SparseOptions& options,
             const SelectionRule& rule, const DetachedRoom& room, std::uint32_t ranks);

  /// Takes memory, and enqueues the selection, after the work of the caller's current stream.
  /// Throws NotImplementedError while a graph is captured, before it takes anything.
  void select();
  /// What the operation reads once the selection has arrived, and writes. After select().
  [[nodiscard]] const Detached& lists() const { return lists_; }
  /// Enqueues the commit on the current stream, after the operation's end.
  void commit(const c10::Stream& stream) const;

 private:
  void lay_out();
  void check(int error, const char* what) const;
  /// Keeps the pinned memory from being reused before the current stream gets here.
  void hold_pinned() const;

  const cuda::Calls& kernels_;
  Lanes& lanes_;
  const DeviceTensors tensors_;
  const double divisor_;
  const SelectionRule rule_;
  const DetachedRoom room_;
  at::Tensor pinned_;  ///< lists, reports, and the table of pieces
  at::Tensor table_;   ///< that table on the device
  std::size_t table_at_ = 0;
  Detached lists_;
  cuda::VectorOf acc_;
};

}  // namespace gtopk::torch_backend
