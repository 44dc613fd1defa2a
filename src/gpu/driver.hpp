// GPU: the functions of CUDA's driver. The driver is loaded when a GPU is first used, so that
// nothing links it. Its functions are declared here instead of taken from its headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace gtopk::gpu {

/// A failure reported by a driver or the kernels, in one line.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The driver's functions. Results are of type CUresult, with 0 for success.
struct Driver {
  using Result = int;
  using Stream = void*;
  using Context = void*;
  using HostFunction = void (*)(void*);
  static constexpr Result kNotReady = 600;

  Result (*init)(unsigned flags) = nullptr;
  Result (*device_count)(int* count) = nullptr;
  Result (*device_of)(int* device, int ordinal) = nullptr;
  Result (*device_name)(char* name, int bytes, int device) = nullptr;
  /// Gets the latest CUDA version that the driver knows; 13000 is CUDA 13.0.
  Result (*version)(int* version) = nullptr;
  Result (*retain_context)(Context* context, int device) = nullptr;
  Result (*release_context)(int device) = nullptr;
  Result (*set_context)(Context context) = nullptr;
  Result (*create_stream)(Stream* stream, unsigned flags) = nullptr;
  Result (*destroy_stream)(Stream stream) = nullptr;
  Result (*synchronize_stream)(Stream stream) = nullptr;
  /// Returns 0 if the stream has done all of its work, kNotReady if not, and otherwise the reason
  /// why the device has failed.
  Result (*query_stream)(Stream stream) = nullptr;
  Result (*allocate)(std::uint64_t* address, std::size_t bytes) = nullptr;
  Result (*release)(std::uint64_t address) = nullptr;
  Result (*allocate_pinned)(void** memory, std::size_t bytes, unsigned flags) = nullptr;
  Result (*release_pinned)(void* memory) = nullptr;
  Result (*copy_in)(std::uint64_t to, const void* from, std::size_t bytes, Stream stream) = nullptr;
  Result (*copy_out)(void* to, std::uint64_t from, std::size_t bytes, Stream stream) = nullptr;
  /// The stream continues when *address - value, as a signed number, is at least 0 (flags 0).
  Result (*wait_value)(Stream stream, std::uint64_t address, std::uint32_t value,
                       unsigned flags) = nullptr;
  /// Calls the function on one of the driver's threads when the stream reaches it. The function
  /// must not call the driver.
  Result (*launch_host_function)(Stream stream, HostFunction call, void* argument) = nullptr;
  /// Sets *status to 0 if the stream is not being captured into a graph.
  Result (*is_capturing)(Stream stream, int* status) = nullptr;
  /// Sets what this thread may call while another one captures a graph; *mode becomes the former
  /// mode.
  Result (*exchange_capture_mode)(int* mode) = nullptr;
  Result (*error_name)(Result error, const char** name) = nullptr;

  /// Returns the driver, which is loaded at the first call: the library that GTOPK_CUDA_DRIVER
  /// names, or else libcuda.so.1. Throws Failure, also in later calls.
  [[nodiscard]] static const Driver& get();

  [[nodiscard]] const char* name_of(Result error) const;
  /// Throws Failure, "the driver cannot WHAT: ...", unless the result is success.
  void check(Result result, const std::string& what) const;
  /// Makes the primary context of that GPU current on this thread, and keeps it until the process
  /// ends, as torch does. Throws Failure.
  void make_current(int ordinal) const;
  /// Describes the device for messages, as far as possible: "NVIDIA H200, CUDA 13.0, driver
  /// 580.65.06".
  [[nodiscard]] std::string described(int ordinal) const;
};

}  // namespace gtopk::gpu
