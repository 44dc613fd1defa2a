#include "src/torch_backend/device_kernels.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {
namespace {

constexpr const char* kKernelsVariable = "GTOPK_CUDA_KERNELS";

/// Beside the library that this is in.
std::string usual_library() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&device_kernels), &here) == 0) {
    return {};
  }
  std::error_code ignored;
  const auto library = std::filesystem::path(here.dli_fname).parent_path() / "libgtopk_cuda.so";
  return std::filesystem::exists(library, ignored) ? library.string() : std::string();
}

const cuda::Calls* load_kernels() {
  const char* const named = std::getenv(kKernelsVariable);
  const std::string name = named != nullptr && *named != '\0' ? named : usual_library();
  if (name.empty() || name == "none") {
    return nullptr;
  }
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  using Get = const cuda::Calls* (*)();
  const auto get =
      library == nullptr ? nullptr : reinterpret_cast<Get>(dlsym(library, "gtopk_cuda_calls"));
  const char* const why = get == nullptr ? dlerror() : nullptr;
  TORCH_CHECK_WITH(DistBackendError, get != nullptr, "gtopk: the kernels for GPUs in ", name,
                   " cannot be used: ", why != nullptr ? why : "unknown error", ". Name others in ",
                   kKernelsVariable, ", or none: tensors are then copied to the host and back");
  const cuda::Calls* const calls = get();
  TORCH_CHECK_WITH(DistBackendError, calls->version == cuda::Calls::kVersion,
                   "gtopk: the kernels for GPUs in ", name, " are of version ", calls->version,
                   ", this library takes version ", cuda::Calls::kVersion);
  return calls;
}

}  // namespace

const cuda::Calls* device_kernels() {
  static const cuda::Calls* const calls = load_kernels();
  return calls;
}

}  // namespace gtopk::torch_backend
