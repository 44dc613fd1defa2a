#include "src/torch_backend/device_driver.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include "gtopk/error.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {
namespace {

constexpr const char* kDriverVariable = "GTOPK_CUDA_DRIVER";
constexpr const char* kUsualDriver = "libcuda.so.1";

template <class Function>
void find_in_driver(void* library, const char* name, const char* symbol, Function& into) {
  void* const address = dlsym(library, symbol);
  TORCH_CHECK_WITH(
      DistBackendError, address != nullptr, "gtopk: the CUDA driver ", name, " has no ", symbol,
      ": install a driver of CUDA 12 or later, or name its library in ", kDriverVariable);
  into = reinterpret_cast<Function>(address);
}

DeviceDriver load_driver() {
  const char* const named = std::getenv(kDriverVariable);
  const char* const name = named != nullptr && *named != '\0' ? named : kUsualDriver;
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const why = dlerror();
    C10_THROW_ERROR(DistBackendError,
                    c10::str("gtopk: tensors on a GPU need its driver, and ", name,
                             " cannot be used: ", why != nullptr ? why : "unknown error",
                             ". Install the driver, or name its library in ", kDriverVariable));
  }
  DeviceDriver driver{};
  find_in_driver(library, name, "cuStreamWaitValue32_v2", driver.wait_value);
  find_in_driver(library, name, "cuLaunchHostFunc", driver.launch_host_function);
  find_in_driver(library, name, "cuStreamIsCapturing", driver.is_capturing);
  find_in_driver(library, name, "cuGetErrorName", driver.error_name);
  find_in_driver(library, name, "cuDeviceGet", driver.device_of);
  find_in_driver(library, name, "cuDevicePrimaryCtxRetain", driver.retain_context);
  find_in_driver(library, name, "cuCtxSetCurrent", driver.set_context);
  return driver;
}

}  // namespace

const char* DeviceDriver::name_of(Result error) const {
  const char* name = nullptr;
  return error_name(error, &name) == 0 && name != nullptr ? name : "an unknown error";
}

void DeviceDriver::make_current(int ordinal) const {
  const auto check = [&](Result result, const char* what) {
    if (result != 0) {
      throw Error(ErrorKind::kTransport,
                  c10::str("the CUDA driver cannot ", what, " device ", ordinal,
                           " for the engine's thread: ", name_of(result), " (", result, ")"));
    }
  };
  int device = 0;
  Context context = nullptr;
  check(device_of(&device, ordinal), "find");
  // Kept until the process ends, as torch keeps it.
  check(retain_context(&context, device), "retain the context of");
  check(set_context(context), "make current");
}

const DeviceDriver& DeviceDriver::get() {
  static const DeviceDriver driver = load_driver();
  return driver;
}

}  // namespace gtopk::torch_backend
