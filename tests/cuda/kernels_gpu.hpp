// Test support: the GPU that the kernels run on, its memory, and calls of the kernels'
// library. Without a word in the environment it is the fake one: GTOPK_CUDA_DRIVER and
// GTOPK_CUDA_KERNELS name another driver and other kernels (docs/devices.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include "src/cuda/calls.hpp"
#include "src/cuda/launches.hpp"
#include "src/gpu/driver.hpp"

namespace gtopk::sparse::testing {

/// One for the program: there before the first test, and until after the last one.
class Gpu {
 public:
  /// Throws gpu::Failure or std::runtime_error where there is none.
  Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  Gpu(Gpu&&) = delete;
  Gpu& operator=(Gpu&&) = delete;
  ~Gpu();

  [[nodiscard]] static const Gpu& get();
  [[nodiscard]] const gpu::Driver& driver() const { return driver_; }
  [[nodiscard]] const cuda::Calls& calls() const { return *calls_; }
  [[nodiscard]] gpu::Driver::Stream stream() const { return stream_; }
  /// Until the stream has done everything. Throws gpu::Failure for what has failed on the GPU.
  void wait() const;
  /// Throws gpu::Failure unless a call of the kernels' library has succeeded, once the stream has
  /// done what earlier ones have left there.
  void check(int error) const;

 private:
  const gpu::Driver& driver_;
  const cuda::Calls* calls_ = nullptr;
  gpu::Driver::Stream stream_ = nullptr;
};

void expect_launches(const cuda::Launches& declared, std::uint64_t seen);

/// Makes a call of the kernels, such as &cuda::Calls::select, and waits for it. The test fails
/// unless it has launched as many kernels as it declares.
template <class Call>
void run(int (*cuda::Calls::*function)(const Call&, void*), const Call& call) {
  const Gpu& gpu = Gpu::get();
  const std::uint64_t before = gpu.calls().launched();
  gpu.check((gpu.calls().*function)(call, gpu.stream()));
  gpu.wait();
  expect_launches(cuda::launches_of(call), gpu.calls().launched() - before);
}

enum class Place : std::uint8_t { kDevice, kPinned };

[[nodiscard]] inline Place either(std::mt19937_64& random) {
  return random() % 2 == 0 ? Place::kDevice : Place::kPinned;
}

/// Memory of its own, so that a sanitizer sees where it ends. Nothing may use it any more when it
/// goes.
class Block {
 public:
  Block(Place place, std::size_t bytes);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  Block(Block&& other) noexcept;
  Block& operator=(Block&&) = delete;
  ~Block();

  [[nodiscard]] std::byte* data() const { return memory_; }
  void write(std::size_t at, const void* from, std::size_t bytes);
  /// Of what the stream has written.
  void read(std::size_t at, void* to, std::size_t bytes) const;

 private:
  Place place_;
  std::byte* memory_ = nullptr;
};

/// `before`: elements of its memory in front of it.
template <class T>
class Array {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  /// With garbage in it.
  Array(Place place, std::size_t size) : Array(place, size, 0) {
    const std::vector<std::byte> garbage(size * sizeof(T), std::byte{0xA5});
    block_.write(0, garbage.data(), garbage.size());
  }
  Array(Place place, const std::vector<T>& elements, std::size_t before = 0)
      : Array(place, elements.size(), before) {
    block_.write(before * sizeof(T), elements.data(), size_ * sizeof(T));
  }

  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(block_.data()) + before_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::vector<T> read() const { return read(size_); }
  [[nodiscard]] std::vector<T> read(std::size_t size) const {
    std::vector<T> elements(size);
    block_.read(before_ * sizeof(T), elements.data(), size * sizeof(T));
    return elements;
  }

 private:
  Array(Place place, std::size_t size, std::size_t before)
      : block_(place, (before + size) * sizeof(T)), size_(size), before_(before) {}

  Block block_;
  std::size_t size_;
  std::size_t before_;
};

/// One element.
template <class T>
class One : public Array<T> {
 public:
  One(Place place, const T& element) : Array<T>(place, std::vector<T>{element}) {}
  [[nodiscard]] T value() const { return this->read().front(); }
};

/// How many seeds to run where so many are usual: GTOPK_SEEDS=0.1 runs a tenth of them, at least
/// one, and GTOPK_SEEDS=10 ten times as many.
[[nodiscard]] std::uint64_t scaled(std::uint64_t seeds);

}  // namespace gtopk::sparse::testing
