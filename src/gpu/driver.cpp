#include "src/gpu/driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <type_traits>

namespace gtopk::gpu {
namespace {

constexpr const char* kDriverVariable = "GTOPK_CUDA_DRIVER";
constexpr const char* kUsualDriver = "libcuda.so.1";

Driver load_driver() {
  const char* const named = std::getenv(kDriverVariable);
  const char* const name = named != nullptr && *named != '\0' ? named : kUsualDriver;
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const why = dlerror();
    throw Failure(
        fmt::format("GPU memory needs the GPU's driver, but {} cannot be used: {}. Install the "
                    "driver, or name its library in {}",
                    name, why != nullptr ? why : "unknown error", kDriverVariable));
  }
  const auto find = [&](const char* symbol, auto& into) {
    void* const address = dlsym(library, symbol);
    if (address == nullptr) {
      throw Failure(
          fmt::format("the CUDA driver {} has no {}: install a driver of CUDA 12 or "
                      "later, or name its library in {}",
                      name, symbol, kDriverVariable));
    }
    into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(address);
  };
  Driver driver;
  find("cuInit", driver.init);
  find("cuDeviceGetCount", driver.device_count);
  find("cuDeviceGet", driver.device_of);
  find("cuDeviceGetName", driver.device_name);
  find("cuDriverGetVersion", driver.version);
  find("cuDevicePrimaryCtxRetain", driver.retain_context);
  find("cuDevicePrimaryCtxRelease_v2", driver.release_context);
  find("cuCtxSetCurrent", driver.set_context);
  find("cuStreamCreate", driver.create_stream);
  find("cuStreamDestroy_v2", driver.destroy_stream);
  find("cuStreamSynchronize", driver.synchronize_stream);
  find("cuStreamQuery", driver.query_stream);
  find("cuMemAlloc_v2", driver.allocate);
  find("cuMemFree_v2", driver.release);
  find("cuMemHostAlloc", driver.allocate_pinned);
  find("cuMemFreeHost", driver.release_pinned);
  find("cuMemcpyHtoDAsync_v2", driver.copy_in);
  find("cuMemcpyDtoHAsync_v2", driver.copy_out);
  find("cuStreamWaitValue32_v2", driver.wait_value);
  find("cuLaunchHostFunc", driver.launch_host_function);
  find("cuStreamIsCapturing", driver.is_capturing);
  find("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode);
  find("cuGetErrorName", driver.error_name);
  return driver;
}

}  // namespace

const Driver& Driver::get() {
  static const Driver driver = load_driver();
  return driver;
}

const char* Driver::name_of(Result error) const {
  const char* name = nullptr;
  return error_name(error, &name) == 0 && name != nullptr ? name : "an unknown error";
}

void Driver::check(Result result, const std::string& what) const {
  if (result != 0) {
    throw Failure(fmt::format("the driver cannot {}: {} ({})", what, name_of(result), result));
  }
}

void Driver::make_current(int ordinal) const {
  int device = 0;
  Context context = nullptr;
  check(device_of(&device, ordinal), fmt::format("find GPU {}", ordinal));
  check(retain_context(&context, device), fmt::format("retain the context of GPU {}", ordinal));
  check(set_context(context), fmt::format("make GPU {} current on this thread", ordinal));
}

std::string Driver::described(int ordinal) const {
  int device = 0;
  std::array<char, 256> name{};
  std::string text = "an unknown GPU";
  if (device_of(&device, ordinal) == 0 &&
      device_name(name.data(), static_cast<int>(name.size()) - 1, device) == 0) {
    text = name.data();
  }
  if (int number = 0; version(&number) == 0) {
    text += fmt::format(", CUDA {}.{}", number / 1000, number % 1000 / 10);
  }
  std::ifstream file("/sys/module/nvidia/version");
  if (std::string of_module; std::getline(file, of_module)) {
    text += ", driver " + of_module;
  }
  return text;
}

}  // namespace gtopk::gpu
