#include "src/torch_backend/device_acc.hpp"

#include <c10/core/StreamGuard.h>

#include <optional>
#include <utility>

#include "src/cuda/acc_lists.hpp"
#include "src/torch_backend/contiguous.hpp"

namespace gtopk::torch_backend {

std::shared_ptr<DeviceAcc> DeviceAcc::of(const cuda::Calls& kernels, const DeviceTensors& tensors,
                                         const SparseOptions& options, std::uint32_t ranks) {
  const std::optional<AccRoom> room = acc_room(tensors.d, tensors.dtype, options);
  if (!room) {
    return nullptr;
  }
  return std::make_shared<DeviceAcc>(kernels, tensors, *room, detached_divisor(options, ranks));
}

DeviceAcc::DeviceAcc(const cuda::Calls& kernels, const DeviceTensors& tensors, const AccRoom& room,
                     double divisor)
    : vector_(kernels, tensors), room_(room), divisor_(divisor) {}

void DeviceAcc::lay_out() {
  const DeviceTensors& tensors = vector_.tensors();
  const std::size_t pieces = tensors.pieces.size();
  const std::size_t bytes = cuda::AccLists::in(nullptr, room_, tensors.dtype, pieces).bytes;
  const at::Tensor pinned =
      host_memory({static_cast<std::int64_t>(bytes)}, at::kByte, vector_.lanes().device());
  const auto dealt = cuda::AccLists::in(bytes_of(pinned), room_, tensors.dtype, pieces);
  lists_ = dealt.lists;
  *lists_.counts = EditCounts();
  vector_.lay_out(pinned, dealt.table_at, room_.index_bytes);
  if (!room_.whole) {
    kernels_ = std::make_unique<AccKernels>(vector_, room_);
    lists_.device = kernels_.get();
  }
}

void DeviceAcc::begin() {
  const BelowAutograd below;
  const Lanes& lanes = vector_.lanes();
  const c10::Stream callers = lanes.current();
  // Memory is taken in there: there is none to be had while a graph is captured.
  vector_.lanes().on_reading([&](const c10::Stream& stream) {
    {
      const c10::StreamGuard now_current(callers);  // what this frees is the caller's again
      lay_out();
    }
    vector_.hand_over();
    if (room_.whole) {
      const cuda::AccumulateCall call{vector_.acc(), lists_.sums};
      vector_.check(vector_.kernels().accumulate(call, lanes.native(stream)), "accumulate");
      vector_.hold_pinned();
    }
    vector_.in_use_on(stream);
  });
}

Collective DeviceAcc::collective(const SparseOptions& options, const Delivered& delivered) const {
  const DeviceTensors& tensors = vector_.tensors();
  return sparse_all_reduce(lists_, tensors.d, tensors.dtype, options, delivered);
}

void DeviceAcc::commit(const c10::Stream& stream) const {
  const BelowAutograd below;
  const DeviceTensors& tensors = vector_.tensors();
  void* const native = vector_.lanes().native(stream);
  if (room_.delivered == 0) {
    const cuda::CommitWholeCall call{vector_.acc(), lists_.sums, lists_.counts, divisor_};
    vector_.check(vector_.kernels().commit_whole(call, native), "commit");
  } else {
    cuda::CommitCall call;
    call.acc = vector_.acc();
    call.momentum = tensors.momentum ? bytes_of(*tensors.momentum) : nullptr;
    call.cleared = lists_.delivered.indices;
    call.delivered = {lists_.delivered.indices, lists_.delivered.values, 0};
    call.counts = lists_.counts;
    call.divisor = divisor_;
    vector_.check(vector_.kernels().commit(call, native), "commit");
  }
  vector_.hold_pinned();
  vector_.in_use_on(stream);
}

}  // namespace gtopk::torch_backend
