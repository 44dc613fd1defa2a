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
  if (!room_.whole) {
    lists_.device = this;
  }
  vector_.lay_out(pinned, dealt.table_at, room_.index_bytes);
  memory_ = std::make_shared<Blocks>(Blocks{vector_.table(), pinned, {}});
  if (room_.columns != 0) {
    const std::size_t room = vector_.kernels().sketch_room(
        accumulation_type(tensors.dtype), room_.columns, tensors.d, room_.candidates);
    memory_->sketch_room = bytes_on(vector_.lanes().device(), room);
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

template <class Call>
void DeviceAcc::hand_over(Call call, int (*kernel)(const Call&, void*), const char* what,
                          Done done) {
  const c10::Device device = vector_.lanes().device();
  // Not of this: it may be gone once the operation is.
  const auto launch = [call, kernel, what, device, &kernels = vector_.kernels(),
                       memory = memory_](const c10::Stream& stream) {
    const Lanes& lanes = Lanes::of(device);
    lanes.in_use_on(memory->table, stream);
    if (memory->sketch_room.defined()) {
      lanes.in_use_on(memory->sketch_room, stream);
    }
    const int error = kernel(call, lanes.native(stream));
    TORCH_CHECK_WITH(DistBackendError, error == 0, "gtopk: ", device, " cannot ", what, ": ",
                     kernels.error_name(error), " (", error, ")");
  };
  Launcher::of(device).run({launch, std::move(done), memory_});
}

void DeviceAcc::gather(const DeviceGather& wanted, Done done) {
  const cuda::GatherCall call{vector_.acc(), wanted.indices, wanted.count, wanted.values,
                              wanted.finite};
  hand_over(call, vector_.kernels().gather, "gather", std::move(done));
}

void DeviceAcc::sketch(const DeviceSketch& wanted, Done done) {
  cuda::SketchCall call;
  call.acc = vector_.acc();
  call.seed = wanted.seed;
  call.columns = wanted.columns;
  call.room = bytes_of(memory_->sketch_room);
  call.cells = wanted.cells;
  hand_over(call, vector_.kernels().sketch, "sketch", std::move(done));
}

void DeviceAcc::find(const DeviceFind& wanted, Done done) {
  cuda::FindCall call;
  call.values = accumulation_type(vector_.tensors().dtype);
  call.index_bytes = room_.index_bytes;
  call.d = vector_.tensors().d;
  call.seed = wanted.seed;
  call.columns = wanted.columns;
  call.cells = wanted.cells;
  call.most = wanted.most;
  call.room = bytes_of(memory_->sketch_room);
  call.heaviest = {wanted.heaviest.indices, wanted.heaviest.values, wanted.most};
  call.report = wanted.report;
  hand_over(call, vector_.kernels().find, "find what is heavy", std::move(done));
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
