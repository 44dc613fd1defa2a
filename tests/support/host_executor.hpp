// Test support: runs the kernels of src/gtopk/device on the CPU, in two ways.
//
// HostExecutor takes blocks one after the other and, in each phase, its threads, both in an order
// drawn anew each time: two threads that get in each other's way between barriers, or blocks that
// count on their order, give different results by order.
//
// ThreadsExecutor runs two blocks at a time, each with as many threads as a GPU would give it and a
// barrier at the end of each phase. With ThreadSanitizer that finds what no order of whole threads
// shows: updates that are lost, and memory that is read before it was handed over.
//
// Shared memory holds garbage at first, as a GPU's does.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <type_traits>
#include <variant>
#include <vector>

#include "src/gtopk/device/block.hpp"
#include "tests/support/block_threads.hpp"

namespace gtopk::sparse::testing {

/// A block whose threads take turns.
class BlockInTurn {
 public:
  BlockInTurn(std::uint64_t number, std::uint64_t count, std::mt19937_64& random)
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
  [[nodiscard]] BlockInTurn alone() const { return {0, 1, random_}; }
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

/// A block as one of its threads sees it, which runs at the same time as the others.
class BlockOfThreads {
 public:
  BlockOfThreads(std::uint64_t number, std::uint64_t count, unsigned thread, PhaseBarrier& barrier)
      : number_(number), count_(count), thread_(thread), barrier_(barrier) {}

  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }

  template <class Phase>
  void each(Phase phase) {
    phase(thread_);
    barrier_.wait();
  }
  template <class T>
  [[nodiscard]] T read(const T& memory) const {
    const T seen = memory;
    barrier_.wait();
    return seen;
  }
  [[nodiscard]] BlockOfThreads alone() const { return {0, 1, thread_, barrier_}; }
  [[nodiscard]] bool comes_last(std::uint32_t& ended, std::uint32_t& is_last) const {
    barrier_.wait();
    if (thread_ == 0) {
      const std::atomic_ref counter(ended);
      const bool last = counter.fetch_add(1, std::memory_order_acq_rel) + 1 == count_;
      if (last) {
        counter.store(0, std::memory_order_relaxed);
      }
      is_last = last ? 1 : 0;
    }
    barrier_.wait();
    return is_last != 0;
  }

 private:
  std::uint64_t number_;
  std::uint64_t count_;
  unsigned thread_;
  PhaseBarrier& barrier_;
};

template <bool AtOnce>
class BasicHostExecutor {
 public:
  /// `wide`: the blocks of a launch that goes over everything.
  BasicHostExecutor(std::uint64_t seed, std::uint64_t wide) : random_(seed), wide_(wide) {}

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
    if constexpr (AtOnce) {
      run_two_at_a_time(blocks, numbers, kernel);
    } else {
      run_in_turn(blocks, numbers, kernel);
    }
  }

 private:
  template <class Shared>
  static void fill_with_garbage(Shared& shared) {
    std::memset(static_cast<void*>(&shared), 0xA5, sizeof shared);
  }
  template <class Kernel>
  void run_in_turn(std::uint64_t blocks, const std::vector<std::uint64_t>& numbers,
                   const Kernel& kernel) {
    const auto shared = std::make_unique<typename Kernel::Shared>();
    for (const std::uint64_t number : numbers) {
      fill_with_garbage(*shared);
      BlockInTurn block(number, blocks, random_);
      kernel(block, *shared);
    }
  }
  template <class Kernel>
  void run_two_at_a_time(std::uint64_t blocks, const std::vector<std::uint64_t>& numbers,
                         const Kernel& kernel) {
    constexpr unsigned kBlocks = BlockThreads::kBlocks;
    const auto shared = std::make_unique<std::array<typename Kernel::Shared, kBlocks>>();
    const auto body = [&](unsigned at, unsigned thread, PhaseBarrier& barrier) {
      for (std::size_t i = at; i < numbers.size(); i += kBlocks) {
        if (thread == 0) {
          fill_with_garbage((*shared)[at]);
        }
        barrier.wait();
        BlockOfThreads block(numbers[i], blocks, thread, barrier);
        kernel(block, (*shared)[at]);
        barrier.wait();
      }
    };
    threads_.run(body);
  }

  std::mt19937_64 random_;
  std::uint64_t wide_;
  std::uint64_t launches_ = 0;
  std::conditional_t<AtOnce, BlockThreads, std::monostate> threads_;
};

using HostExecutor = BasicHostExecutor<false>;
using ThreadsExecutor = BasicHostExecutor<true>;

}  // namespace gtopk::sparse::testing
