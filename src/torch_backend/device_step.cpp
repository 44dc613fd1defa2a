#include "src/torch_backend/device_step.hpp"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "src/cuda/acc_lists.hpp"
#include "src/cuda/step_lists.hpp"
#include "src/torch_backend/contiguous.hpp"

namespace gtopk::torch_backend {
namespace {

/// Where the k-th key of the last selection from a residual is kept, on its device: one number,
/// zero at first. One that is another residual's costs time, and changes no result.
at::Tensor last_key(const at::Tensor& residual) {
  static constexpr std::size_t kMost = 4096;
  static std::mutex mutex;
  // Never destroyed: there is no device any more when the process's statics end.
  static auto& all = *std::make_unique<std::map<const void*, at::Tensor>>().release();
  const std::lock_guard lock(mutex);
  if (all.size() >= kMost) {
    all.clear();
  }
  at::Tensor& key = all[residual.const_data_ptr()];
  if (!key.defined() || key.device() != residual.device()) {
    const at::Tensor zero = host_memory({1}, at::kLong, residual.device()).zero_();
    key = at::empty({1}, residual.options().dtype(at::kLong));
    key.copy_(zero, /*non_blocking=*/true);
  }
  return key;
}

/// Whether lists that can stay on the device do: not short ones, nor if they need more memory there
/// than a residual.
bool worth_it(const cuda::Calls& kernels, const DeviceListRoom& lists,
              const DeviceTensors& tensors) {
  return lists.message_bytes > kShortMessage &&
         DeviceLists::device_bytes(kernels, lists, tensors.dtype) <=
             tensors.d * size_of(accumulation_type(tensors.dtype));
}

}  // namespace

std::shared_ptr<DeviceStep> DeviceStep::of(const cuda::Calls& kernels, const DeviceTensors& tensors,
                                           const SparseOptions& options, std::uint32_t ranks) {
  std::optional<DetachedRoom> room = detached_room(tensors.d, tensors.dtype, options, ranks);
  std::optional<AccRoom> sums;
  if (const auto of_auto = auto_room(tensors.d, tensors.dtype, options, ranks)) {
    room = of_auto->lists;
    sums = of_auto->acc;
  }
  if (!room || room->returned > tensors.d) {
    return nullptr;
  }
  const SelectionRule rule = selection_rule(tensors.d, tensors.dtype, options).value();
  std::optional<DeviceListRoom> lists;
  if (tensors.lists_may_stay) {
    lists = device_list_room(tensors.d, tensors.dtype, options, ranks, tensors.noted);
  }
  if (lists && !worth_it(kernels, *lists, tensors)) {
    lists.reset();
  }
  return std::make_shared<DeviceStep>(kernels, tensors, options, rule, *room, lists, sums, ranks);
}

DeviceStep::DeviceStep(const cuda::Calls& kernels, const DeviceTensors& tensors,
                       const SparseOptions& options, const SelectionRule& rule,
                       const DetachedRoom& room, const std::optional<DeviceListRoom>& lists,
                       const std::optional<AccRoom>& sums, std::uint32_t ranks)
    : vector_(kernels, tensors),
      divisor_(detached_divisor(options, ranks)),
      rule_(rule),
      room_(room),
      list_room_(lists),
      sum_room_(sums) {}

void DeviceStep::lay_out() {
  const DeviceTensors& tensors = vector_.tensors();
  const std::size_t pieces = tensors.pieces.size();
  const c10::Device device = vector_.lanes().device();
  // Of lists that stay on the device only the table and the reports are here.
  const DetachedRoom here = list_room_ ? DetachedRoom{.index_bytes = room_.index_bytes} : room_;
  const std::size_t bytes = cuda::StepLists::in(nullptr, here, tensors.dtype, pieces).bytes;
  const std::size_t of_lists = list_room_ ? DeviceLists::pinned_bytes(*list_room_) : 0;
  const std::size_t of_sums =
      sum_room_ ? cuda::AccLists::in(nullptr, *sum_room_, tensors.dtype, 0).bytes : 0;
  const at::Tensor pinned =
      host_memory({static_cast<std::int64_t>(bytes + of_lists + of_sums)}, at::kByte, device);
  const auto dealt = cuda::StepLists::in(bytes_of(pinned), here, tensors.dtype, pieces);
  dealt.reset();
  lists_ = dealt.lists;
  last_state_ = dealt.last;
  next_state_ = dealt.next;
  vector_.lay_out(pinned, dealt.table_at, room_.index_bytes);
  if (sum_room_) {
    kernels_ = std::make_unique<AccKernels>(vector_, *sum_room_);
    sums_ = cuda::AccLists::in(bytes_of(pinned) + bytes, *sum_room_, tensors.dtype, 0).lists;
    sums_.device = kernels_.get();
    *sums_.counts = EditCounts();
  }
  if (list_room_) {
    there_ = std::make_unique<DeviceLists>(
        vector_.kernels(), device, *list_room_,
        DeviceLists::Numbers{.dtype = tensors.dtype, .d = tensors.d, .divisor = divisor_}, pinned,
        bytes);
  }
}

void DeviceStep::in_use_on(const c10::Stream& stream) const {
  vector_.in_use_on(stream);
  if (there_) {
    vector_.lanes().in_use_on(there_->on_device(), stream);
  }
}

void DeviceStep::read_state() {
  const auto& state = vector_.tensors().state;
  if (rule_.kind != SelectionRule::Kind::kThreshold || !state) {
    return;
  }
  state_read_ = std::make_shared<std::atomic<bool>>(false);
  vector_.lanes().call_behind_reads(
      [to = last_state_, from = state->const_data_ptr<double>(), read = state_read_] {
        std::copy_n(from, to->numbers.size(), to->numbers.data());
        read->store(true, std::memory_order_release);
      });
}

DeviceStep::~DeviceStep() {
  if (state_read_ && !state_read_->load(std::memory_order_acquire)) {
    // The operation was never queued, and the state is still to be read: it is never let go.
    static_cast<void>(std::make_unique<at::Tensor>(*vector_.tensors().state).release());
  }
}

void DeviceStep::begin() {
  const BelowAutograd below;
  const Lanes& lanes = vector_.lanes();
  const c10::Stream callers = lanes.current();
  // Memory is taken in there: there is none to be had while a graph is captured.
  vector_.lanes().on_reading([&](const c10::Stream& stream) {
    at::Tensor room;
    at::Tensor last;
    {
      const c10::StreamGuard now_current(callers);  // what this frees is the caller's again
      lay_out();
      room = bytes_on(lanes.device(), vector_.kernels().select_room(vector_.acc(), rule_));
    }
    if (vector_.tensors().residual) {
      last = last_key(*vector_.tensors().residual);
    }
    vector_.hand_over();
    read_state();
    cuda::SelectCall call;
    call.acc = vector_.acc();
    call.rule = rule_;
    call.room = bytes_of(room);
    const DetachedEntries& kept = there_ ? there_->lists().selected : lists_.selected;
    call.kept = {kept.indices, kept.values, rule_.most};
    call.report = there_ ? there_->report() : const_cast<SelectionReport*>(lists_.report);
    call.last = last.defined()
                    ? reinterpret_cast<std::uint64_t*>(last.mutable_data_ptr<std::int64_t>())
                    : nullptr;
    call.state = last_state_->numbers.data();
    call.next = next_state_->numbers.data();
    vector_.check(vector_.kernels().select(call, lanes.native(stream)), "select");
    vector_.hold_pinned();
    in_use_on(stream);
    lanes.in_use_on(room, stream);
    if (last.defined()) {
      lanes.in_use_on(last, stream);
    }
  });
}

void DeviceStep::commit(const c10::Stream& stream) const {
  const BelowAutograd below;
  const auto& momentum_of = vector_.tensors().momentum;
  void* const momentum = momentum_of ? bytes_of(*momentum_of) : nullptr;
  void* const native = vector_.lanes().native(stream);
  if (there_) {
    cuda::CommitListsCall call;
    call.acc = vector_.acc();
    call.momentum = momentum;
    call.edits = there_->lists().edits;
    call.most_dropped = there_->most_dropped();
    call.divisor = divisor_;
    vector_.check(vector_.kernels().commit_lists(call, native), "commit");
  } else if (sum_room_ && sums_.counts->happened != 0) {  // the operation has ended
    const cuda::CommitWholeCall call{vector_.acc(), sums_.sums, sums_.counts, divisor_};
    vector_.check(vector_.kernels().commit_whole(call, native), "commit");
  } else {
    cuda::CommitCall call;
    call.acc = vector_.acc();
    call.momentum = momentum;
    call.cleared = lists_.cleared;
    call.returned = {lists_.returned.indices, lists_.returned.values, 0};
    call.delivered = {lists_.delivered.indices, lists_.delivered.values, 0};
    call.counts = lists_.counts;
    call.divisor = divisor_;
    vector_.check(vector_.kernels().commit(call, native), "commit");
  }
  vector_.hold_pinned();
  in_use_on(stream);
}

Collective DeviceStep::collective(const SparseOptions& options, const Delivered& delivered) const {
  const DeviceTensors& tensors = vector_.tensors();
  if (there_) {
    ListsOnDevice lists = there_->lists();
    lists.next = lists_.next;
    return sparse_all_reduce(lists, tensors.d, tensors.dtype, options, delivered);
  }
  if (sum_room_) {
    return sparse_all_reduce(AutoOnDevice{lists_, sums_}, tensors.d, tensors.dtype, options);
  }
  return sparse_all_reduce(lists_, tensors.d, tensors.dtype, options, delivered);
}

}  // namespace gtopk::torch_backend
