#include "src/torch_backend/device_kernels.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "src/cuda/load.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {
namespace {

/// Returns the folder of the library that contains this code.
std::string folder() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&device_kernels), &here) == 0) {
    return {};
  }
  return std::filesystem::path(here.dli_fname).parent_path().string();
}

/// Loads the kernels; returns null if there are none, which is logged unless the user asked for it.
const cuda::Calls* load_kernels() {
  try {
    const cuda::Calls* const calls = cuda::load_calls(folder());
    if (calls == nullptr && std::getenv("GTOPK_CUDA_KERNELS") == nullptr) {
      TORCH_WARN("gtopk: this build has no kernels for GPUs (GTOPK_CUDA=OFF): sparse all-reduces ",
                 "select and commit on the CPU. GTOPK_CUDA_KERNELS=none avoids this warning");
    }
    return calls;
  } catch (const std::runtime_error& error) {
    C10_THROW_ERROR(DistBackendError, error.what());
  }
}

}  // namespace

const cuda::Calls* device_kernels() {
  static const cuda::Calls* const calls = load_kernels();
  return calls;
}

}  // namespace gtopk::torch_backend
