// Test support: torch's side of the fake device (device.hpp): PrivateUse1, as torch calls
// third-party devices. Everything except copies is computed by torch's CPU kernels.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "device.hpp"

namespace {

constexpr auto kFake = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kFake, 0);

c10::Stream as_torch(int number) { return c10::Stream(c10::Stream::UNSAFE, kDevice, number); }
fake::Stream& as_fake(const c10::Stream& stream) {
  return fake::stream(static_cast<int>(stream.id()));
}

int& current() {
  thread_local int stream = 0;
  return stream;
}

/// As torch does after every call of CUDA's runtime.
void check() { TORCH_CHECK(fake::error() == 0, "fake error: an illegal memory access"); }

struct Event {
  struct Passed {
    std::atomic<std::uint64_t> version{0};
    std::chrono::steady_clock::time_point at;
  };
  std::uint64_t recorded = 0;
  std::shared_ptr<Passed> done = std::make_shared<Passed>();
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFake; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return as_torch(current()); }
  c10::Stream getDefaultStream(c10::Device) const override { return as_torch(0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  /// Separate pools for each priority, as in CUDA.
  c10::Stream getStreamFromGlobalPool(c10::Device, bool high) const override {
    static std::array<std::atomic<int>, 2> next{};
    return as_torch(1 + (high ? fake::kPool : 0) + next[high ? 1 : 0]++ % fake::kPool);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return as_torch(std::exchange(current(), static_cast<int>(stream.id())));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &as_fake(stream); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    check();
    if (*event == nullptr) {
      *event = new Event;
    }
    auto* const mine = static_cast<Event*>(*event);
    const std::uint64_t version = ++mine->recorded;
    fake::enqueue(as_fake(stream), [done = mine->done, version] {
      done->at = std::chrono::steady_clock::now();
      done->version = version;
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    check();
    auto* const mine = static_cast<Event*>(event);
    fake::enqueue(
        as_fake(stream), [] {},
        [done = mine->done, version = mine->recorded] { return done->version >= version; });
  }
  bool queryEvent(void* event) const override {
    check();
    auto* const mine = static_cast<Event*>(event);
    return mine == nullptr || mine->done->version >= mine->recorded;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void synchronizeEvent(void* event) const override {
    fake::count("synchronize_event");
    while (!queryEvent(event)) {
      std::this_thread::yield();
    }
  }
  double elapsedTime(void* first, void* then, const c10::DeviceIndex) const override {
    const auto passed = static_cast<Event*>(then)->done->at - static_cast<Event*>(first)->done->at;
    return std::chrono::duration<double, std::milli>(passed).count();
  }
  bool queryStream(const c10::Stream& stream) const override {
    check();
    return fake::done(as_fake(stream)) >= fake::given(as_fake(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    fake::count("synchronize_stream");
    fake::synchronize(as_fake(stream));
    check();
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    fake::count("synchronize_device");
    for (int i = 0; i < fake::kStreams; ++i) {
      fake::synchronize(fake::stream(i));
    }
    check();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get() != nullptr) {
      fake::Memory::in_use_on(data.get(), as_fake(stream));
    }
  }
};

template <bool Pinned>
struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    if (Pinned) {
      check();
      fake::count("pinned_bytes", static_cast<std::int64_t>(std::max<std::size_t>(bytes, 2)));
    }
    void* const memory =
        fake::Memory::take(bytes, Pinned, Pinned ? nullptr : &fake::stream(current()));
    return {memory, memory, &fake::Memory::give_back,
            Pinned ? c10::Device(c10::DeviceType::CPU) : kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &fake::Memory::give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Allocator<false> on_device;
Allocator<true> pinned;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* memory) const override { return fake::Memory::is_pinned(memory); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  /// FSDP2 gives the memory of a whole parameter back, and takes it anew, without what was in it.
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    TORCH_CHECK(storage.nbytes() == 0 || bytes == 0, "the fake device does not move storages");
    storage.set_data_ptr_noswap(bytes == 0 ? c10::DataPtr(nullptr, kDevice)
                                           : on_device.allocate(bytes));
    storage.set_nbytes(bytes);
  }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
};

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &on_device,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &on_device,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

/// The same elements as a CPU tensor that does not own them.
at::Tensor bare(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below;
  void* memory = tensor.storage().data_ptr().get();
  if (tensor.device().type() == kFake && memory != nullptr) {
    memory = fake::Memory::behind(memory);
  }
  auto* const first =
      static_cast<std::byte*>(memory) + tensor.storage_offset() * tensor.element_size();
  at::Tensor view = at::for_blob(first, tensor.sizes())
                        .strides(tensor.strides())
                        .options(at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU))
                        .make_tensor();
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  fake::count("copy");
  if (to.numel() == 0) {
    return to;
  }
  check();
  const c10::Stream stream = as_torch(current());
  fake::enqueue(as_fake(stream), [to = bare(to), from = bare(from.expand(to.sizes()))] {
    const at::AutoDispatchBelowADInplaceOrView below;
    to.copy_(from);
  });
  bool pageable = false;
  for (const at::Tensor& each : {from, to}) {
    if (!each.device().is_cpu()) {
      continue;
    }
    void* const memory = each.storage().data_ptr().get();
    if (fake::Memory::is_pinned(memory)) {
      fake::Memory::in_use_on(memory, as_fake(stream));
    } else {
      pageable = true;
    }
  }
  const bool on_host = from.device().is_cpu() || to.device().is_cpu();
  if (on_host) {
    fake::count("bytes_crossed", static_cast<std::int64_t>(to.nbytes()));
  }
  if (on_host && (!non_blocking || pageable)) {
    fake::synchronize(as_fake(stream));
    check();
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    c10::TensorImpl* const resized = to.unsafeGetTensorImpl();
    resized->set_storage_keep_dtype(at::empty(from.sizes(), to.options()).storage());
    resized->set_sizes_contiguous(from.sizes());
  }
  return copy_from(from, to, false);
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  fake::Memory::in_use_on(tensor.storage().data_ptr().get(), as_fake(stream));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("record_stream", &record_stream);
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY(fake, library) {
  library.def("hold() -> ()", +[] { fake::hold(fake::stream(current())); });
  library.def("release() -> ()", +[] { fake::release(); });
  library.def("await_standstill() -> ()", +[] { fake::await_standstill(); });
  library.def(
      "let_fail(str what, int more) -> ()",
      +[](const std::string& what, std::int64_t more) { fake::let_fail(what, more); });
  library.def("fault() -> ()", +[] { fake::fault(fake::stream(current())); });
  library.def("queries() -> int", +[] { return fake::queries(); });
  library.def("capture(bool on) -> ()", +[](bool on) { fake::capture(on); });
  library.def(
      "set_stream(int number) -> int", +[](std::int64_t number) {
        return static_cast<std::int64_t>(std::exchange(current(), static_cast<int>(number)));
      });
  library.def("calls() -> str[]", +[] { return fake::calls(); });
  library.def(
      "counts() -> Dict(str, int)", +[] {
        c10::Dict<std::string, std::int64_t> counts;
        for (const auto& [name, count] : fake::counts()) {
          counts.insert(name, count);
        }
        return counts;
      });
}

const bool kRegistered = [] {
  c10::register_privateuse1_backend("fake");
  c10::SetAllocator(kFake, &on_device);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
