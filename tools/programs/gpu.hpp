// Programs: a GPU and its memory, through the driver. Nothing links the driver, which is loaded
// when --memory cuda requests it. This module does not know the network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <CLI/CLI.hpp>

#include "gtopk/gate.hpp"
#include "gtopk/memory.hpp"
#include "src/gpu/driver.hpp"

namespace gtopk::programs {

/// Returns the folder in which a wheel has the kernels: the package gtopk, beside gtopk_programs.
[[nodiscard]] std::string kernels_folder();

/// Adds -m, --memory: "host" or "cuda".
void add_memory(CLI::App& app, std::string& memory);

/// One GPU and a stream on it. Its context is current on the thread that made it. Enqueued work
/// runs in order. Errors are std::runtime_error with one line that names the driver's error.
class Gpu {
 public:
  /// Takes the GPU of this number, modulo the number of GPUs. Throws if there is no driver
  /// (GTOPK_CUDA_DRIVER, else libcuda.so.1) or no GPU.
  explicit Gpu(std::uint32_t number);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  Gpu(Gpu&&) = delete;
  Gpu& operator=(Gpu&&) = delete;
  ~Gpu();

  /// The name, such as "GPU 0, NVIDIA H200".
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Memory memory() const { return cuda_memory(static_cast<std::int16_t>(device_)); }
  /// The stream as the driver and the kernels know it.
  [[nodiscard]] void* stream() const { return stream_; }
  [[nodiscard]] const gpu::Driver& driver() const { return *driver_; }
  /// Makes the context current on the calling thread, if it is another thread.
  void make_current() const;

  /// These enqueue a copy from pinned memory to the GPU's, and back.
  void copy_in(void* to, const void* from, std::uint64_t bytes) const;
  void copy_out(void* to, const void* from, std::uint64_t bytes) const;
  /// Decides the gate when everything enqueued so far is done.
  void arrive(const std::shared_ptr<Gate>& gate) const;
  /// Waits for everything enqueued so far.
  void synchronize() const;
  /// Does the same but ignores errors.
  void wait() const noexcept;

 private:
  friend class GpuMemory;
  friend class PinnedMemory;

  const gpu::Driver* driver_;
  int device_ = 0;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  std::string name_;
};

/// Bytes in the GPU's memory, which the host must not touch.
class GpuMemory {
 public:
  GpuMemory(const Gpu& gpu, std::uint64_t bytes);
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  GpuMemory(GpuMemory&&) = delete;
  GpuMemory& operator=(GpuMemory&&) = delete;
  ~GpuMemory();

  [[nodiscard]] void* data() const;

 private:
  const Gpu& gpu_;
  std::uint64_t address_ = 0;
};

/// Bytes in host memory that the GPU can access, so that copies from and to them need no other
/// memory.
class PinnedMemory {
 public:
  PinnedMemory(const Gpu& gpu, std::uint64_t bytes);
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  PinnedMemory(PinnedMemory&&) = delete;
  PinnedMemory& operator=(PinnedMemory&&) = delete;
  ~PinnedMemory();

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  const Gpu& gpu_;
  std::span<std::byte> bytes_;
};

}  // namespace gtopk::programs
