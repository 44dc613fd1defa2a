// Torch backend: a sparse all-reduce of tensors that stay on their device. The selection is made
// there, lists of entries go to the core and back in pinned memory, and the resulting edits are
// applied there. Nothing of the tensor's size is copied. See gtopk/detached.hpp. Where the network
// takes the device's memory, the lists stay there, too: see gtopk/device_lists.hpp.
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
#include "src/torch_backend/device_lists.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// The tensors of a call, on one device, and its arguments.
struct DeviceTensors {
  std::vector<at::Tensor> pieces;
  std::optional<at::Tensor> residual;
  std::optional<at::Tensor> momentum;
  std::uint64_t d = 0;
  DataType dtype = DataType::kFloat32;
  /// The network takes the device's memory between all ranks.
  bool lists_may_stay = false;
  /// The result's entries are to be recorded.
  bool noted = false;
};

class DeviceStep {
 public:
  /// Null if the call has to be staged: there are no kernels for the device, tensors are not
  /// contiguous, the algorithm or selector has no kernel, or the lists would be longer than the
  /// tensor. Throws Error{kInvalidArgument} for an invalid call.
  [[nodiscard]] static std::shared_ptr<DeviceStep> of(const DeviceTensors& tensors,
                                                      const SparseOptions& options,
                                                      std::uint32_t ranks);

  /// `lists`: the room of lists that stay.
  DeviceStep(const cuda::Calls& kernels, DeviceTensors tensors, const SparseOptions& options,
             const SelectionRule& rule, const DetachedRoom& room,
             const std::optional<DeviceListRoom>& lists, std::uint32_t ranks);

  /// Takes memory, and enqueues the selection, after the work of the caller's current stream.
  /// Throws NotImplementedError while a graph is captured, before it takes anything.
  void select();
  /// Whether nodes are made on the device while the operation runs.
  [[nodiscard]] bool lists_stay() const { return list_room_.has_value(); }
  /// The operation, which starts once the selection has arrived. After select().
  [[nodiscard]] Collective collective(const SparseOptions& options,
                                      const Delivered& delivered) const;
  /// Enqueues the commit on the current stream, after the operation's end.
  void commit(const c10::Stream& stream) const;

 private:
  void lay_out();
  /// Writes the table of pieces.
  void number(cuda::PieceOf* table);
  /// Notes what the stream uses of the call.
  void in_use_on(const c10::Stream& stream) const;
  void check(int error, const char* what) const;
  /// Keeps the pinned memory from being reused before the current stream gets here.
  void hold_pinned() const;

  const cuda::Calls& kernels_;
  Lanes& lanes_;
  const DeviceTensors tensors_;
  const double divisor_;
  const SelectionRule rule_;
  const DetachedRoom room_;
  const std::optional<DeviceListRoom> list_room_;
  at::Tensor pinned_;  ///< lists, reports, and the table of pieces
  at::Tensor table_;   ///< that table on the device
  std::size_t table_at_ = 0;
  Detached lists_;
  std::unique_ptr<DeviceLists> there_;  ///< instead, if they stay
  cuda::VectorOf acc_;
};

}  // namespace gtopk::torch_backend
