// Torch backend: the driver functions that torch does not wrap. The driver is loaded at the first
// call with a tensor on a device, so that this library loads on a machine without one; the types
// and functions are declared here rather than taken from the driver's headers.
#pragma once

#include <cstdint>

namespace gtopk::torch_backend {

struct DeviceDriver {
  using Stream = void*;   ///< CUstream
  using Context = void*;  ///< CUcontext
  using Result = int;     ///< CUresult; 0 is success

  /// The stream continues when *address - value, as a signed number, is at least 0 (flags 0).
  Result (*wait_value)(Stream stream, std::uint64_t address, std::uint32_t value, unsigned flags);
  /// Calls the function on a driver thread, after all earlier work of the stream. It must not call
  /// the driver.
  Result (*launch_host_function)(Stream stream, void (*function)(void*), void* argument);
  Result (*is_capturing)(Stream stream, int* status);
  Result (*error_name)(Result error, const char** name);
  Result (*device_of)(int* device, int ordinal);
  Result (*retain_context)(Context* context, int device);
  Result (*set_context)(Context context);

  /// "CUDA_ERROR_INVALID_VALUE (1)"
  [[nodiscard]] const char* name_of(Result error) const;

  /// Makes the device's primary context, which torch uses too, this thread's. Throws
  /// Error{kTransport}.
  void make_current(int ordinal) const;

  /// Loads the library that GTOPK_CUDA_DRIVER names, else libcuda.so.1, once. Throws
  /// DistBackendError that says what is missing.
  [[nodiscard]] static const DeviceDriver& get();
};

}  // namespace gtopk::torch_backend
