#include "src/cuda/load.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace gtopk::cuda {
namespace {

constexpr const char* kKernelsVariable = "GTOPK_CUDA_KERNELS";

std::string usual_library(const std::string& folder) {
  std::error_code ignored;
  const auto library = std::filesystem::path(folder) / "libgtopk_cuda.so";
  return std::filesystem::exists(library, ignored) ? library.string() : std::string();
}

}  // namespace

const Calls* load_calls(const std::string& folder) {
  const char* const named = std::getenv(kKernelsVariable);
  const std::string name = named != nullptr && *named != '\0' ? named : usual_library(folder);
  if (name.empty() || name == "none") {
    return nullptr;
  }
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  using Get = const Calls* (*)();
  const auto get =
      library == nullptr ? nullptr : reinterpret_cast<Get>(dlsym(library, "gtopk_cuda_calls"));
  if (get == nullptr) {
    const char* const why = dlerror();
    throw std::runtime_error(
        fmt::format("gtopk: the kernels for GPUs in {} cannot be used: {}. Set {} to another "
                    "library, or to none: tensors are then copied to the host and back",
                    name, why != nullptr ? why : "unknown error", kKernelsVariable));
  }
  const Calls* const calls = get();
  if (calls->version != Calls::kVersion) {
    throw std::runtime_error(
        fmt::format("gtopk: the kernels for GPUs in {} are of version {}, this library needs "
                    "version {}",
                    name, calls->version, Calls::kVersion));
  }
  return calls;
}

}  // namespace gtopk::cuda
