#include "tools/programs/gpu.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>
#include <type_traits>

namespace gtopk::programs {

/// The driver's functions, declared by hand. Results are CUresult, 0 for success.
class GpuDriver {
 public:
  int (*init)(unsigned flags) = nullptr;
  int (*device_count)(int* count) = nullptr;
  int (*device_of)(int* device, int ordinal) = nullptr;
  int (*device_name)(char* name, int bytes, int device) = nullptr;
  int (*retain_context)(void** context, int device) = nullptr;
  int (*release_context)(int device) = nullptr;
  int (*set_context)(void* context) = nullptr;
  int (*create_stream)(void** stream, unsigned flags) = nullptr;
  int (*destroy_stream)(void* stream) = nullptr;
  int (*synchronize_stream)(void* stream) = nullptr;
  int (*allocate)(std::uint64_t* address, std::size_t bytes) = nullptr;
  int (*release)(std::uint64_t address) = nullptr;
  int (*allocate_pinned)(void** memory, std::size_t bytes, unsigned flags) = nullptr;
  int (*release_pinned)(void* memory) = nullptr;
  int (*copy_in)(std::uint64_t to, const void* from, std::size_t bytes, void* stream) = nullptr;
  int (*copy_out)(void* to, std::uint64_t from, std::size_t bytes, void* stream) = nullptr;
  int (*error_name)(int error, const char** name) = nullptr;

  GpuDriver() {
    const char* const named = std::getenv("GTOPK_CUDA_DRIVER");
    const std::string name = named != nullptr && *named != '\0' ? named : "libcuda.so.1";
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      const char* const why = dlerror();
      throw std::runtime_error(
          fmt::format("--memory cuda needs a GPU's driver, and {} cannot be used: {}. Install the "
                      "driver, or name its library in GTOPK_CUDA_DRIVER",
                      name, why != nullptr ? why : "unknown error"));
    }
    const auto find = [&](const char* symbol, auto& into) {
      void* const address = dlsym(library, symbol);
      if (address == nullptr) {
        throw std::runtime_error(
            fmt::format("--memory cuda: the CUDA driver {} has no {}", name, symbol));
      }
      into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(address);
    };
    find("cuInit", init);
    find("cuDeviceGetCount", device_count);
    find("cuDeviceGet", device_of);
    find("cuDeviceGetName", device_name);
    find("cuDevicePrimaryCtxRetain", retain_context);
    find("cuDevicePrimaryCtxRelease_v2", release_context);
    find("cuCtxSetCurrent", set_context);
    find("cuStreamCreate", create_stream);
    find("cuStreamDestroy_v2", destroy_stream);
    find("cuStreamSynchronize", synchronize_stream);
    find("cuMemAlloc_v2", allocate);
    find("cuMemFree_v2", release);
    find("cuMemHostAlloc", allocate_pinned);
    find("cuMemFreeHost", release_pinned);
    find("cuMemcpyHtoDAsync_v2", copy_in);
    find("cuMemcpyDtoHAsync_v2", copy_out);
    find("cuGetErrorName", error_name);
  }

  void check(int result, const std::string& what) const {
    if (result == 0) {
      return;
    }
    const char* name = nullptr;
    const bool known = error_name(result, &name) == 0 && name != nullptr;
    throw std::runtime_error(fmt::format("--memory cuda: the driver cannot {}: {} ({})", what,
                                         known ? name : "an unknown error", result));
  }
};

void add_memory(CLI::App& app, std::string& memory) {
  app.add_option("-m,--memory", memory, "where the data is: host, or cuda: on a GPU")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
}

Gpu::Gpu(std::uint32_t number) : driver_(std::make_unique<GpuDriver>()) {
  driver_->check(driver_->init(0), "start");
  int count = 0;
  driver_->check(driver_->device_count(&count), "count the GPUs");
  if (count < 1) {
    throw std::runtime_error("--memory cuda: the driver sees no GPU");
  }
  const int ordinal = static_cast<int>(number % static_cast<std::uint32_t>(count));
  driver_->check(driver_->device_of(&device_, ordinal), fmt::format("find GPU {}", ordinal));
  std::array<char, 256> name{};
  driver_->check(driver_->device_name(name.data(), static_cast<int>(name.size()) - 1, device_),
                 fmt::format("name GPU {}", ordinal));
  name_ = fmt::format("GPU {}, {}", ordinal, name.data());
  driver_->check(driver_->retain_context(&context_, device_), "make a context");
  int failed = driver_->set_context(context_);
  if (failed == 0) {
    failed = driver_->create_stream(&stream_, 0);
  }
  if (failed != 0) {
    static_cast<void>(driver_->release_context(device_));
    driver_->check(failed, "make a stream");
  }
}

Gpu::~Gpu() {
  static_cast<void>(driver_->destroy_stream(stream_));
  static_cast<void>(driver_->release_context(device_));
}

void Gpu::make_current() const {
  driver_->check(driver_->set_context(context_), "make its context current");
}

void Gpu::copy_in(void* to, const void* from, std::uint64_t bytes) const {
  if (bytes != 0) {
    driver_->check(driver_->copy_in(reinterpret_cast<std::uint64_t>(to), from, bytes, stream_),
                   fmt::format("copy {} bytes to the GPU", bytes));
  }
}

void Gpu::copy_out(void* to, const void* from, std::uint64_t bytes) const {
  if (bytes != 0) {
    driver_->check(driver_->copy_out(to, reinterpret_cast<std::uint64_t>(from), bytes, stream_),
                   fmt::format("copy {} bytes from the GPU", bytes));
  }
}

void Gpu::synchronize() const {
  driver_->check(driver_->synchronize_stream(stream_), "do what it was given");
}

GpuMemory::GpuMemory(const Gpu& gpu, std::uint64_t bytes) : gpu_(gpu) {
  gpu.driver_->check(gpu.driver_->allocate(&address_, std::max<std::uint64_t>(bytes, 1)),
                     fmt::format("give {} bytes of the GPU's memory", bytes));
}

GpuMemory::~GpuMemory() { static_cast<void>(gpu_.driver_->release(address_)); }

void* GpuMemory::data() const { return reinterpret_cast<void*>(address_); }

PinnedMemory::PinnedMemory(const Gpu& gpu, std::uint64_t bytes) : gpu_(gpu) {
  void* memory = nullptr;
  gpu.driver_->check(gpu.driver_->allocate_pinned(&memory, std::max<std::uint64_t>(bytes, 1), 0),
                     fmt::format("give {} bytes of pinned memory", bytes));
  bytes_ = {static_cast<std::byte*>(memory), bytes};
}

PinnedMemory::~PinnedMemory() { static_cast<void>(gpu_.driver_->release_pinned(bytes_.data())); }

}  // namespace gtopk::programs
