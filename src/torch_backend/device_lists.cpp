#include "src/torch_backend/device_lists.hpp"

#include <algorithm>
#include <utility>

#include "src/torch_backend/device_lanes.hpp"

namespace gtopk::torch_backend {
namespace {

constexpr std::size_t kDeviceLine = 256;
constexpr std::size_t kPinnedLine = 64;

/// Deals one block out; from null it only measures.
class Deal {
 public:
  Deal(std::byte* begin, std::size_t line) : begin_(begin), line_(line) {}

  [[nodiscard]] std::byte* take(std::size_t bytes) {
    const std::size_t at = taken_;
    taken_ += (bytes + line_ - 1) / line_ * line_;
    return begin_ == nullptr ? nullptr : begin_ + at;
  }
  [[nodiscard]] std::size_t taken() const { return taken_; }

 private:
  std::byte* begin_;
  std::size_t line_;
  std::size_t taken_ = 0;
};

std::byte* bytes_of_block(const at::Tensor& block) {
  return static_cast<std::byte*>(block.mutable_data_ptr());
}

at::Tensor block_on(c10::Device device, std::size_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)},
                   at::TensorOptions().dtype(at::kByte).device(device));
}

struct Pinned {
  SelectionReport* report = nullptr;
  ListEdits* edits = nullptr;
  std::byte* room = nullptr;
  std::size_t bytes = 0;

  static Pinned in(std::byte* begin, const DeviceListRoom& room) {
    Deal deal(begin, kPinnedLine);
    Pinned all;
    all.report = reinterpret_cast<SelectionReport*>(deal.take(sizeof(SelectionReport)));
    all.edits = reinterpret_cast<ListEdits*>(deal.take(sizeof(ListEdits)));
    all.room = deal.take(room.pinned_bytes);
    all.bytes = deal.taken();
    return all;
  }
};

struct OnDevice {
  DetachedEntries selected;
  std::byte* work_room = nullptr;  ///< of one merge, decoding or closing at a time
  std::byte* room = nullptr;
  std::size_t bytes = 0;

  static OnDevice in(std::byte* begin, const cuda::Calls& kernels, const DeviceListRoom& room,
                     DataType dtype) {
    const std::size_t value_bytes = dtype == DataType::kFloat64 ? 8 : 4;
    Deal deal(begin, kDeviceLine);
    OnDevice all;
    all.selected.values = deal.take(room.selected * value_bytes);
    all.selected.indices = deal.take(room.selected * room.index_bytes);
    const std::size_t merging =
        kernels.merge_room(accumulation_type(dtype), room.index_bytes, room.largest_merge);
    all.work_room = deal.take(
        room.largest_coded == 0
            ? merging
            : std::max(merging, kernels.coding_room(room.largest_coded, room.message_bytes)));
    all.room = deal.take(room.device_bytes);
    all.bytes = deal.taken();
    return all;
  }
};

cuda::ListOf list_of(const DeviceList& list) { return {list.indices, list.values, list.size}; }
cuda::ListOf room_of_list(const DetachedEntries& room) { return {room.indices, room.values, 0}; }

}  // namespace

std::size_t DeviceLists::pinned_bytes(const DeviceListRoom& room) {
  return Pinned::in(nullptr, room).bytes;
}

std::size_t DeviceLists::device_bytes(const cuda::Calls& kernels, const DeviceListRoom& room,
                                      DataType dtype) {
  return OnDevice::in(nullptr, kernels, room, dtype).bytes;
}

DeviceLists::DeviceLists(const cuda::Calls& kernels, c10::Device device, const DeviceListRoom& room,
                         const Numbers& numbers, const at::Tensor& pinned, std::size_t begin)
    : kernels_(kernels),
      launcher_(Launcher::of(device)),
      device_(device),
      room_(room),
      numbers_(numbers),
      memory_(std::make_shared<Blocks>()) {
  memory_->on_device = block_on(device, device_bytes(kernels, room, numbers.dtype));
  const OnDevice there =
      OnDevice::in(bytes_of_block(memory_->on_device), kernels, room, numbers.dtype);
  lists_.selected = there.selected;
  work_room_ = there.work_room;
  lists_.room = there.room;
  memory_->pinned = pinned;
  const Pinned here = Pinned::in(bytes_of_block(pinned) + begin, room);
  report_ = here.report;
  lists_.edits = here.edits;
  lists_.pinned = here.room;
  *report_ = SelectionReport();
  *lists_.edits = ListEdits();
  lists_.report = report_;
  lists_.device = this;
}

Memory DeviceLists::memory() const {
  return cuda_memory(static_cast<std::int16_t>(device_.index()));
}

template <class Enqueue>
void DeviceLists::hand_over(Enqueue enqueue, const char* what, Done done) {
  // Not of this: it may be gone once the operation is.
  const auto launch = [enqueue, what, &kernels = kernels_, device = device_,
                       memory = memory_](const c10::Stream& stream) {
    const Lanes& lanes = Lanes::of(device);
    lanes.in_use_on(memory->on_device, stream);
    const int error = enqueue(kernels, lanes.native(stream));
    TORCH_CHECK_WITH(DistBackendError, error == 0, "gtopk: ", device, " cannot ", what, ": ",
                     kernels.error_name(error), " (", error, ")");
  };
  launcher_.run({launch, std::move(done), memory_});
}

cuda::DecodeCall DeviceLists::decoding(const CodedList& coded, const DeviceList& list,
                                       std::uint64_t* sound) const {
  cuda::DecodeCall call;
  call.values = accumulation_type(numbers_.dtype);
  call.index_bytes = room_.index_bytes;
  call.coded = coded;
  call.d = numbers_.d;
  call.room = work_room_;
  call.list = list_of(list);
  call.sound = sound;
  return call;
}

cuda::CloseCall DeviceLists::closing_of(const DeviceClosing& closing) const {
  cuda::CloseCall call;
  call.values = accumulation_type(numbers_.dtype);
  call.index_bytes = room_.index_bytes;
  call.closing = closing;
  call.room = work_room_;
  return call;
}

void DeviceLists::close(const DeviceClosing& closing, Done done) {
  const auto enqueue = [call = closing_of(closing)](const cuda::Calls& kernels, void* stream) {
    return kernels.close(call, stream);
  };
  hand_over(enqueue, "code a list", std::move(done));
}

void DeviceLists::merge(const DeviceMerge& node, Done done) {
  cuda::MergeCall call;
  call.values = accumulation_type(numbers_.dtype);
  call.index_bytes = room_.index_bytes;
  call.a = list_of(node.mine);
  call.b = list_of(node.theirs);
  call.k = node.keep;
  call.unites = node.unites ? 1 : 0;
  call.room = work_room_;
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

void DeviceLists::inspect(const DeviceInspection& look, Done done) {
  cuda::InspectCall call;
  call.dtype = numbers_.dtype;
  call.index_bytes = room_.index_bytes;
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

}  // namespace gtopk::torch_backend
