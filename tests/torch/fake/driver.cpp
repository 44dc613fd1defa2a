// The driver's functions that gtopk and its programs call, as GTOPK_CUDA_DRIVER finds them. Those
// about streams and graphs that only torch's streams come with are in device.cpp.
//
// FAKE_DEVICE_CALLS names a file, to which the process's id is appended, for the names of what was
// called, in order; written when the process ends. FAKE_DEVICES=0: there is a driver and no GPU.
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "device.hpp"

namespace {

// Of CUresult.
constexpr int kInvalidValue = 1;
constexpr int kNotInitialized = 3;
constexpr int kNoDevice = 100;
constexpr int kInvalidContext = 201;
constexpr int kIllegalAddress = 700;

bool initialized = false;
thread_local bool has_context = false;

/// What a call that takes memory or streams needs on its thread.
int ready() {
  if (!initialized) {
    return kNotInitialized;
  }
  return has_context ? fake::error() : kInvalidContext;
}

/// On the thread that asks about what takes long: whether it does depends on the time.
bool is_watch() {
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  return std::string(name.data()) == "gtopk-watch";
}

struct Recorder {
  Recorder() = default;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  Recorder(Recorder&&) = delete;
  Recorder& operator=(Recorder&&) = delete;
  ~Recorder() {
    const char* const path = std::getenv("FAKE_DEVICE_CALLS");
    if (path == nullptr) {
      return;
    }
    std::ofstream file(path + std::string(".") + std::to_string(getpid()));
    for (const std::string& call : fake::calls()) {
      file << call << '\n';
    }
  }
} const kRecorder;

/// Copies when the stream comes to it; both addresses are as the device knows them.
int copy(const char* name, void* to, const void* from, std::size_t bytes, void* on) {
  if (const int error = ready(); error != 0) {
    return error;
  }
  fake::count(name);
  fake::enqueue(*static_cast<fake::Stream*>(on), [to, from, bytes] {
    std::memcpy(fake::Memory::reachable(to), fake::Memory::reachable(from), bytes);
  });
  return 0;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

int cuInit(unsigned flags) {
  const char* const devices = std::getenv("FAKE_DEVICES");
  if (devices != nullptr && std::strcmp(devices, "0") == 0) {
    return kNoDevice;
  }
  initialized = true;
  return flags == 0 ? 0 : kInvalidValue;
}

int cuDeviceGetCount(int* count) {
  *count = 1;
  return initialized ? 0 : kNotInitialized;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? 0 : kInvalidValue;
}

int cuDeviceGetName(char* name, int bytes, int) {
  std::strncpy(name, "a fake", static_cast<std::size_t>(bytes));
  return 0;
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int) {
  static int one = 0;
  *context = &one;
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int) {
  fake::count("release_context");
  return 0;
}

int cuCtxSetCurrent(void* context) {
  fake::count(is_watch() ? "set_current of watch" : "set_current");
  has_context = context != nullptr;
  return fake::error();
}

int cuStreamCreate(void** stream, unsigned) {
  static int next = 1;
  if (const int error = ready(); error != 0) {
    return error;
  }
  *stream = &fake::stream(next++);
  return 0;
}

int cuStreamDestroy_v2(void*) { return ready(); }

int cuStreamSynchronize(void* stream) {
  fake::count("synchronize_stream");
  fake::synchronize(*static_cast<fake::Stream*>(stream));
  return ready();
}

int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  if (const int error = bytes == 0 ? kInvalidValue : ready(); error != 0) {
    return error;
  }
  *address = reinterpret_cast<std::uint64_t>(fake::Memory::take(bytes, false, nullptr));
  return 0;
}

int cuMemFree_v2(std::uint64_t address) {
  fake::Memory::give_back(reinterpret_cast<void*>(address));
  return ready();
}

int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  if (const int error = bytes == 0 ? kInvalidValue : ready(); error != 0) {
    return error;
  }
  *memory = fake::Memory::take(bytes, true, nullptr);
  return 0;
}

int cuMemFreeHost(void* memory) {
  fake::Memory::give_back(memory);
  return ready();
}

int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void* stream) {
  return copy("copy_in", reinterpret_cast<void*>(to), from, bytes, stream);
}

int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
  return copy("copy_out", to, reinterpret_cast<const void*>(from), bytes, stream);
}

int cuGetErrorName(int error, const char** name) {
  *name = error == kNoDevice         ? "CUDA_ERROR_NO_DEVICE"
          : error == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                     : "CUDA_ERROR_OF_A_FAKE";
  return 0;
}
}
// NOLINTEND(readability-identifier-naming)
