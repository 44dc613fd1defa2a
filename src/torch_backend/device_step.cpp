#include "src/torch_backend/device_step.hpp"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "src/cuda/step_lists.hpp"
#include "src/torch_backend/contiguous.hpp"
#include "src/torch_backend/device_kernels.hpp"

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

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

bool all_plain(const DeviceTensors& tensors) {
  const c10::Device device = tensors.pieces.front().device();
  const auto is_plain_there = [&](const at::Tensor& tensor) {
    return is_plain(tensor) && tensor.device() == device;
  };
  return std::ranges::all_of(tensors.pieces, is_plain_there) &&
         (!tensors.residual || is_plain(*tensors.residual)) &&
         (!tensors.momentum || is_plain(*tensors.momentum));
}

/// Whether lists that can stay on the device do: not short ones, nor if they need more memory there
/// than a residual.
bool worth_it(const cuda::Calls& kernels, const DeviceListRoom& lists,
              const DeviceTensors& tensors) {
  return lists.message_bytes > kShortMessage &&
         DeviceLists::device_bytes(kernels, lists, tensors.dtype) <=
             tensors.d * size_of(accumulation_type(tensors.dtype));
}

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

at::Tensor bytes_on(c10::Device device, std::size_t count) {
  return at::empty({static_cast<std::int64_t>(count)},
                   at::TensorOptions().dtype(at::kByte).device(device));
}

}  // namespace

std::shared_ptr<DeviceStep> DeviceStep::of(const DeviceTensors& tensors,
                                           const SparseOptions& options, std::uint32_t ranks) {
  if (tensors.pieces.front().device().is_cpu() || tensors.d == 0 || !all_plain(tensors)) {
    return nullptr;
  }
  const cuda::Calls* const kernels = device_kernels();
  if (kernels == nullptr) {
    return nullptr;
  }
  const std::optional<DetachedRoom> room = detached_room(tensors.d, tensors.dtype, options, ranks);
  if (!room || room->returned > tensors.d) {
    return nullptr;
  }
  const SelectionRule rule = selection_rule(tensors.d, tensors.dtype, options).value();
  std::optional<DeviceListRoom> lists;
  if (tensors.lists_may_stay) {
    lists = device_list_room(tensors.d, tensors.dtype, options, ranks, tensors.noted);
  }
  if (lists && !worth_it(*kernels, *lists, tensors)) {
    lists.reset();
  }
  return std::make_shared<DeviceStep>(*kernels, tensors, options, rule, *room, lists, ranks);
}

DeviceStep::DeviceStep(const cuda::Calls& kernels, DeviceTensors tensors,
                       const SparseOptions& options, const SelectionRule& rule,
                       const DetachedRoom& room, const std::optional<DeviceListRoom>& lists,
                       std::uint32_t ranks)
    : kernels_(kernels),
      lanes_(Lanes::of(tensors.pieces.front().device())),
      tensors_(std::move(tensors)),
      divisor_(detached_divisor(options, ranks)),
      rule_(rule),
      room_(room),
      list_room_(lists) {}

void DeviceStep::lay_out() {
  const std::size_t pieces = tensors_.pieces.size();
  const c10::Device device = lanes_.device();
  // Of lists that stay on the device only the table and the reports are here.
  const DetachedRoom here = list_room_ ? DetachedRoom{.index_bytes = room_.index_bytes} : room_;
  const std::size_t bytes = cuda::StepLists::in(nullptr, here, tensors_.dtype, pieces).bytes;
  const std::size_t of_lists = list_room_ ? DeviceLists::pinned_bytes(*list_room_) : 0;
  pinned_ = host_memory({static_cast<std::int64_t>(bytes + of_lists)}, at::kByte, device);
  const auto dealt = cuda::StepLists::in(bytes_of(pinned_), here, tensors_.dtype, pieces);
  dealt.reset();
  lists_ = dealt.lists;
  table_at_ = dealt.table_at;
  number(dealt.table);
  table_ = bytes_on(device, std::max<std::size_t>(acc_.count, 1) * sizeof(cuda::PieceOf));
  acc_.pieces = reinterpret_cast<const cuda::PieceOf*>(bytes_of(table_));
  if (list_room_) {
    there_ = std::make_unique<DeviceLists>(
        kernels_, device, *list_room_,
        DeviceLists::Numbers{.dtype = tensors_.dtype, .d = tensors_.d, .divisor = divisor_},
        pinned_, bytes);
  }
}

void DeviceStep::number(cuda::PieceOf* table) {
  const std::size_t value_bytes = tensors_.dtype == DataType::kFloat64 ? 8 : 4;
  std::byte* const residual = tensors_.residual ? bytes_of(*tensors_.residual) : nullptr;
  std::uint64_t begin = 0;
  std::uint32_t count = 0;
  for (const at::Tensor& tensor : tensors_.pieces) {
    const auto size = static_cast<std::uint64_t>(tensor.numel());
    if (size != 0) {
      table[count++] = {bytes_of(tensor),
                        residual == nullptr ? nullptr : residual + begin * value_bytes, begin, size,
                        0};
    }
    begin += size;
  }
  acc_.dtype = tensors_.dtype;
  acc_.index_bytes = room_.index_bytes;
  acc_.count = count;
  acc_.tiles = kernels_.number_tiles(table, count);
  acc_.d = tensors_.d;
}

void DeviceStep::check(int error, const char* what) const {
  TORCH_CHECK_WITH(DistBackendError, error == 0, "gtopk: ", lanes_.device(), " cannot ", what, ": ",
                   kernels_.error_name(error), " (", error, ")");
}

void DeviceStep::hold_pinned() const {
  // torch notes what is copied from pinned memory, and not what else is done with it.
  table_.narrow(0, 0, 8).copy_(pinned_.narrow(0, static_cast<std::int64_t>(table_at_), 8),
                               /*non_blocking=*/true);
}

void DeviceStep::in_use_on(const c10::Stream& stream) const {
  for (const at::Tensor& each : tensors_.pieces) {
    lanes_.in_use_on(each, stream);
  }
  for (const auto& each : {tensors_.residual, tensors_.momentum}) {
    if (each) {
      lanes_.in_use_on(*each, stream);
    }
  }
  lanes_.in_use_on(table_, stream);
  if (there_) {
    lanes_.in_use_on(there_->on_device(), stream);
  }
}

void DeviceStep::select() {
  const BelowAutograd below;
  const c10::Stream callers = lanes_.current();
  // Memory is taken in there: there is none to be had while a graph is captured.
  lanes_.on_reading([&](const c10::Stream& stream) {
    at::Tensor room;
    at::Tensor last;
    {
      const c10::StreamGuard now_current(callers);  // what this frees is the caller's again
      lay_out();
      room = bytes_on(lanes_.device(), kernels_.select_room(acc_, rule_));
    }
    if (tensors_.residual) {
      last = last_key(*tensors_.residual);
    }
    table_.copy_(pinned_.narrow(0, static_cast<std::int64_t>(table_at_), table_.numel()),
                 /*non_blocking=*/true);
    cuda::SelectCall call;
    call.acc = acc_;
    call.rule = rule_;
    call.room = bytes_of(room);
    const DetachedEntries& kept = there_ ? there_->lists().selected : lists_.selected;
    call.kept = {kept.indices, kept.values, rule_.most};
    call.report = there_ ? there_->report() : const_cast<SelectionReport*>(lists_.report);
    call.last = last.defined()
                    ? reinterpret_cast<std::uint64_t*>(last.mutable_data_ptr<std::int64_t>())
                    : nullptr;
    check(kernels_.select(call, lanes_.native(stream)), "select");
    hold_pinned();
    in_use_on(stream);
    lanes_.in_use_on(room, stream);
    if (last.defined()) {
      lanes_.in_use_on(last, stream);
    }
  });
}

void DeviceStep::commit(const c10::Stream& stream) const {
  const BelowAutograd below;
  void* const momentum = tensors_.momentum ? bytes_of(*tensors_.momentum) : nullptr;
  if (there_) {
    cuda::CommitListsCall call;
    call.acc = acc_;
    call.momentum = momentum;
    call.edits = there_->lists().edits;
    call.most_dropped = there_->most_dropped();
    call.divisor = divisor_;
    check(kernels_.commit_lists(call, lanes_.native(stream)), "commit");
  } else {
    cuda::CommitCall call;
    call.acc = acc_;
    call.momentum = momentum;
    call.cleared = lists_.cleared;
    call.returned = {lists_.returned.indices, lists_.returned.values, 0};
    call.delivered = {lists_.delivered.indices, lists_.delivered.values, 0};
    call.counts = lists_.counts;
    call.divisor = divisor_;
    check(kernels_.commit(call, lanes_.native(stream)), "commit");
  }
  hold_pinned();
  in_use_on(stream);
}

Collective DeviceStep::collective(const SparseOptions& options, const Delivered& delivered) const {
  if (there_) {
    return sparse_all_reduce(there_->lists(), tensors_.d, tensors_.dtype, options, delivered);
  }
  return sparse_all_reduce(lists_, tensors_.d, tensors_.dtype, options, delivered);
}

}  // namespace gtopk::torch_backend
