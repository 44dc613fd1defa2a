// Programs: a GPU and its memory, by the driver, which is loaded when --memory cuda asks for it:
// nothing links it. It knows no network.
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

/// Where a wheel has the kernels: the package's folder, beside gtopk_programs/bin.
[[nodiscard]] std::string kernels_folder();

/// -m, --memory: "host" or "cuda".
void add_memory(CLI::App& app, std::string& memory);

/// One GPU and a stream of it. Its context is current on the thread that made it. What it enqueues
/// is done in order; all of it throws std::runtime_error, in one line that names the driver's
/// error.
class Gpu {
 public:
  /// The GPU of this number, modulo their number. Throws where there is no driver
  /// (GTOPK_CUDA_DRIVER, else libcuda.so.1) or no GPU.
  explicit Gpu(std::uint32_t number);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  Gpu(Gpu&&) = delete;
  Gpu& operator=(Gpu&&) = delete;
  ~Gpu();

  /// "GPU 0, NVIDIA H200"
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Memory memory() const { return cuda_memory(static_cast<std::int16_t>(device_)); }
  /// As the driver and the kernels know it.
  [[nodiscard]] void* stream() const { return stream_; }
  [[nodiscard]] const gpu::Driver& driver() const { return *driver_; }
  /// On another thread.
  void make_current() const;

  /// Enqueue a copy from pinned memory to the GPU's, and back.
  void copy_in(void* to, const void* from, std::uint64_t bytes) const;
  void copy_out(void* to, const void* from, std::uint64_t bytes) const;
  /// Decides the gate when all that was enqueued is done.
  void arrive(const std::shared_ptr<Gate>& gate) const;
  /// Waits for all that was enqueued.
  void synchronize() const;
  /// The same, whether it could be done or not.
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

/// Bytes in the GPU's memory, which nobody on the host may touch.
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

/// Bytes of the host's that the GPU reaches: copies from and to them take no other memory.
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
