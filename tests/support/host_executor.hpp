// Test support: runs the kernels of src/gtopk/device on the CPU. Blocks are taken one after the
// other and, in each phase, its threads, both in an order drawn anew each time: two threads that
// get in each other's way between barriers, or blocks that count on their order, give different
// results by order. Shared memory holds garbage at first, as a GPU's does.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

#include "src/gtopk/device/block.hpp"

namespace gtopk::sparse::testing {

class HostBlock {
 public:
  HostBlock(std::uint64_t number, std::uint64_t count, std::mt19937_64& random)
      : number_(number), count_(count), random_(random) {}

  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }

  /// Each thread once: upwards, downwards, or from any one on and by any odd stride.
  template <class Phase>
  void each(Phase phase) {
    constexpr unsigned kThreads = device::kThreads;
    static_assert((kThreads & (kThreads - 1)) == 0);
    const auto first = static_cast<unsigned>(random_() % kThreads);
    const auto stride = static_cast<unsigned>(random_() | 1U);
    for (unsigned i = 0; i < kThreads; ++i) {
      phase((first + i * stride) % kThreads);
    }
  }
  template <class T>
  [[nodiscard]] T read(const T& memory) const {
    return memory;
  }
  [[nodiscard]] HostBlock alone() const { return {0, 1, random_}; }
  [[nodiscard]] bool comes_last(std::uint32_t& ended, std::uint32_t& is_last) const {
    is_last = ++ended == count_ ? 1 : 0;
    if (is_last != 0) {
      ended = 0;
    }
    return is_last != 0;
  }

 private:
  std::uint64_t number_;
  std::uint64_t count_;
  std::mt19937_64& random_;
};

class HostExecutor {
 public:
  /// `wide`: the blocks of a launch that goes over everything.
  HostExecutor(std::uint64_t seed, std::uint64_t wide) : random_(seed), wide_(wide) {}

  [[nodiscard]] std::uint64_t wide() const { return wide_; }
  [[nodiscard]] std::uint64_t launches() const { return launches_; }

  template <class Kernel>
  void launch(std::uint64_t blocks, const Kernel& kernel) {
    std::vector<std::uint64_t> numbers(blocks);
    std::iota(numbers.begin(), numbers.end(), std::uint64_t{0});
    std::shuffle(numbers.begin(), numbers.end(), random_);
    launch_some(blocks, numbers, kernel);
  }

  /// Only these blocks of a launch.
  template <class Kernel>
  void launch_some(std::uint64_t blocks, const std::vector<std::uint64_t>& numbers,
                   const Kernel& kernel) {
    using Shared = typename Kernel::Shared;
    static_assert(std::is_trivially_copyable_v<Kernel>, "its arguments are copied to the GPU");
    static_assert(std::is_trivially_default_constructible_v<Shared>);
    static_assert(sizeof(Shared) <= std::size_t{48} * 1024,
                  "the shared memory that any GPU gives a block");
    ++launches_;
    const auto shared = std::make_unique<Shared>();
    for (const std::uint64_t number : numbers) {
      std::memset(static_cast<void*>(shared.get()), 0xA5, sizeof(Shared));
      HostBlock block(number, blocks, random_);
      kernel(block, *shared);
    }
  }

 private:
  std::mt19937_64 random_;
  std::uint64_t wide_;
  std::uint64_t launches_ = 0;
};

}  // namespace gtopk::sparse::testing
