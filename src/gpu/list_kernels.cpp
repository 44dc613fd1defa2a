#include "src/gpu/list_kernels.hpp"

#include <algorithm>
#include <utility>

#include "src/gpu/step.hpp"

namespace gtopk::gpu {
namespace {

cuda::ListOf list_of(const DeviceList& list) { return {list.indices, list.values, list.size}; }
cuda::ListOf room_of_list(const DetachedEntries& room) { return {room.indices, room.values, 0}; }

}  // namespace

std::size_t ListKernels::work_bytes(const cuda::Calls& kernels, const DeviceListRoom& room,
                                    DataType dtype) {
  const std::size_t merging =
      kernels.merge_room(accumulation_type(dtype), room.index_bytes, room.largest_merge);
  return room.largest_coded == 0
             ? merging
             : std::max(merging, kernels.coding_room(room.largest_coded, room.message_bytes));
}

template <class Enqueue>
void ListKernels::hand_over(Enqueue enqueue, const char* what, Done done) {
  // Not of this: it may be gone once the operation is.
  const auto launch = [enqueue, what, &kernels = kernels_,
                       &launcher = launcher_](Driver::Stream stream) {
    check_kernels(kernels, enqueue(kernels, stream), launcher.device(), what);
  };
  launcher_.run({launch, std::move(done), memory_.owner});
}

cuda::DecodeCall ListKernels::decoding(const CodedList& coded, const DeviceList& list,
                                       std::uint64_t* sound) const {
  cuda::DecodeCall call;
  call.values = accumulation_type(numbers_.dtype);
  call.index_bytes = numbers_.index_bytes;
  call.coded = coded;
  call.d = numbers_.d;
  call.room = work_;
  call.list = list_of(list);
  call.sound = sound;
  return call;
}

cuda::CloseCall ListKernels::closing_of(const DeviceClosing& closing) const {
  cuda::CloseCall call;
  call.values = accumulation_type(numbers_.dtype);
  call.index_bytes = numbers_.index_bytes;
  call.closing = closing;
  call.room = work_;
  return call;
}

void ListKernels::close(const DeviceClosing& closing, Done done) {
  const auto enqueue = [call = closing_of(closing)](const cuda::Calls& kernels, void* stream) {
    return kernels.close(call, stream);
  };
  hand_over(enqueue, "code a list", std::move(done));
}

void ListKernels::merge(const DeviceMerge& node, Done done) {
  cuda::MergeCall call;
  call.values = accumulation_type(numbers_.dtype);
  call.index_bytes = numbers_.index_bytes;
  call.a = list_of(node.mine);
  call.b = list_of(node.theirs);
  call.k = node.keep;
  call.unites = node.unites ? 1 : 0;
  call.room = work_;
  call.kept = room_of_list(node.kept);
  call.dropped = room_of_list(node.dropped);
  call.report = node.report;
  call.sound = node.sound;
  call.d = numbers_.d;
  call.checked = node.coded.bytes != nullptr ? 1 : 0;
  const auto enqueue = [call, decode = decoding(node.coded, node.theirs, node.sound),
                        close = closing_of(node.closing)](const cuda::Calls& kernels,
                                                          void* stream) {
    int error = call.checked != 0 ? kernels.decode(decode, stream) : 0;
    error = error == 0 ? kernels.merge(call, stream) : error;
    const bool closes = close.closing.format != ListFormat::kRaw;
    return error == 0 && closes ? kernels.close(close, stream) : error;
  };
  hand_over(enqueue, "merge lists", std::move(done));
}

void ListKernels::inspect(const DeviceInspection& look, Done done) {
  cuda::InspectCall call;
  call.dtype = numbers_.dtype;
  call.index_bytes = numbers_.index_bytes;
  call.list = list_of(look.result);
  call.d = numbers_.d;
  call.divisor = numbers_.divisor;
  call.sound = look.sound;
  call.fits = look.fits;
  call.copy = room_of_list(look.copy);
  call.checked = look.coded.bytes != nullptr ? 1 : 0;
  const auto enqueue = [call, decode = decoding(look.coded, look.result, look.sound)](
                           const cuda::Calls& kernels, void* stream) {
    const int error = call.checked != 0 ? kernels.decode(decode, stream) : 0;
    return error == 0 ? kernels.inspect(call, stream) : error;
  };
  hand_over(enqueue, "look at a list", std::move(done));
}

}  // namespace gtopk::gpu
