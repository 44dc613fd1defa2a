// Sparse, device: the means to write kernels. A kernel is a value whose body is run by a block
// of threads. nvcc compiles it for the GPU, and g++ for tests, where a host executor
// (tests/support/host_executor.hpp) runs the same body, thread after thread, or with real threads.
//
// A body consists of phases:
//
//     block.each([&](unsigned thread) { … });   // every thread runs it before any goes on
//
// Every thread runs the code between phases in the same way. This code sees arguments and local
// variables; it must use block.read() for memory that threads write. A thread keeps nothing from
// phase to phase except in shared memory. So a block on the CPU needs no threads and no barriers,
// and the order in which it runs the threads of a phase must not matter.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "src/numbers/host_device.hpp"

namespace gtopk::sparse::device {

/// The number of threads of a block.
inline constexpr unsigned kThreads = 256;
/// The most elements that a block handles at a time.
inline constexpr unsigned kTile = 4096;

template <class T>
[[nodiscard]] GTOPK_HOST_DEVICE constexpr T least(T a, T b) {
  return b < a ? b : a;
}

/// The number of parts of `Size` elements; the last part may have fewer.
template <unsigned Size>
[[nodiscard]] GTOPK_HOST_DEVICE constexpr std::uint64_t tiles_of(std::uint64_t elements) {
  return elements / Size + (elements % Size == 0 ? 0 : 1);
}
[[nodiscard]] GTOPK_HOST_DEVICE constexpr std::uint64_t tiles_of(std::uint64_t elements) {
  return tiles_of<kTile>(elements);
}

[[nodiscard]] GTOPK_HOST_DEVICE inline unsigned count_bits(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return static_cast<unsigned>(__popc(bits));
#else
  return static_cast<unsigned>(std::popcount(bits));
#endif
}

/// The position of the lowest bit that is set; at least one must be.
[[nodiscard]] GTOPK_HOST_DEVICE inline unsigned lowest_bit(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return static_cast<unsigned>(__ffs(static_cast<int>(bits))) - 1;
#else
  return static_cast<unsigned>(std::countr_zero(bits));
#endif
}

/// Adds to a number, atomically across threads and blocks; returns the previous value.
GTOPK_HOST_DEVICE inline std::uint32_t add(std::uint32_t& number, std::uint32_t more) {
#ifdef __CUDA_ARCH__
  return atomicAdd(&number, more);
#else
  return __atomic_fetch_add(&number, more, __ATOMIC_RELAXED);
#endif
}

GTOPK_HOST_DEVICE inline std::uint64_t add(std::uint64_t& number, std::uint64_t more) {
#ifdef __CUDA_ARCH__
  static_assert(sizeof(unsigned long long) == sizeof number);
  return atomicAdd(reinterpret_cast<unsigned long long*>(&number),
                   static_cast<unsigned long long>(more));
#else
  return __atomic_fetch_add(&number, more, __ATOMIC_RELAXED);
#endif
}

/// Raises `number` to at least `to`. The update is atomic across threads and blocks.
GTOPK_HOST_DEVICE inline void raise(std::uint64_t& number, std::uint64_t to) {
#ifdef __CUDA_ARCH__
  atomicMax(reinterpret_cast<unsigned long long*>(&number), static_cast<unsigned long long>(to));
#else
  std::uint64_t now = __atomic_load_n(&number, __ATOMIC_RELAXED);
  while (now < to && !__atomic_compare_exchange_n(&number, &now, to, /*weak=*/true,
                                                  __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
#endif
}

/// Called by all threads of a block in the same phase: adds up their numbers. A GPU does this warp
/// by warp, because threads that add to the same number take turns.
GTOPK_HOST_DEVICE inline void add_by_all(std::uint32_t& number, std::uint32_t more) {
#ifdef __CUDA_ARCH__
  const std::uint32_t sum = __reduce_add_sync(0xFFFFFFFFU, more);
  if (threadIdx.x % 32 == 0 && sum != 0) {
    add(number, sum);
  }
#else
  add(number, more);
#endif
}

/// Called by all threads of a block in the same phase: raises `number` to the largest `to`.
GTOPK_HOST_DEVICE inline void raise_by_all(std::uint64_t& number, std::uint64_t to) {
#ifdef __CUDA_ARCH__
  for (int distance = 16; distance != 0; distance /= 2) {
    const std::uint64_t other = __shfl_xor_sync(0xFFFFFFFFU, to, distance);
    to = other > to ? other : to;
  }
  if (threadIdx.x % 32 == 0) {
    raise(number, to);
  }
#else
  raise(number, to);
#endif
}

GTOPK_HOST_DEVICE inline void set_bits(std::uint32_t& word, std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  atomicOr(&word, bits);
#else
  __atomic_fetch_or(&word, bits, __ATOMIC_RELAXED);
#endif
}

/// Clears a flag; other threads and blocks may do the same at the same time.
template <class Flag>
GTOPK_HOST_DEVICE void clear(Flag& flag) {
#ifdef __CUDA_ARCH__
  flag = 0;
#else
  __atomic_store_n(&flag, Flag{0}, __ATOMIC_RELAXED);
#endif
}

/// Calls visit(i, thread) for every i below `count`, each in one of the threads of all blocks.
template <class Block, class Visit>
GTOPK_HOST_DEVICE void each_of(Block& block, std::uint64_t count, Visit visit) {
  const std::uint64_t all_threads = block.count() * kThreads;
  block.each([&](unsigned thread) {
    for (std::uint64_t i = block.number() * kThreads + thread; i < count; i += all_threads) {
      visit(i, thread);
    }
  });
}

/// The bytes that each_loaded() loads ahead. A kernel that would otherwise need more registers than
/// a thread has, and spill, loads less.
inline constexpr unsigned kUsualBytes = 32;
inline constexpr unsigned kFewerBytes = 16;
inline constexpr unsigned kFewestBytes = 8;

/// Calls visit(i, load(i)) for one thread's share of `size` elements. Several are loaded before the
/// first of them is visited: the compiler cannot move a load ahead of a visit that may write, so
/// each load would wait for the one before it. For the same reason no load is behind a branch: in
/// place of elements beyond the end, a thread loads its last element again. A thread loads only
/// elements that it visits, because other threads may already write theirs, and their numbers do
/// not descend. `Bytes` is the size of what is loaded ahead.
template <unsigned Bytes = kUsualBytes, class Load, class Visit>
GTOPK_HOST_DEVICE void each_loaded(unsigned thread, unsigned size, Load load, Visit visit) {
  using Loaded = decltype(load(std::size_t{thread}));
  constexpr unsigned kAhead = Bytes / sizeof(Loaded);
  unsigned first = thread;
  for (; first + (kAhead - 1) * kThreads < size; first += kAhead * kThreads) {
    Loaded loaded[kAhead];
    const std::size_t from = first;  // so that its offset can be part of an instruction
    for (unsigned j = 0; j < kAhead; ++j) {
      loaded[j] = load(from + std::size_t{j} * kThreads);
    }
    for (unsigned j = 0; j < kAhead; ++j) {
      visit(first + j * kThreads, loaded[j]);
    }
  }
  if (first < size && size - (first - thread) <= kThreads) {  // at most one is left per thread
    visit(first, load(std::size_t{first}));
  } else if (first < size) {  // fewer than kAhead are left for this thread
    Loaded loaded[kAhead];
    const unsigned last = first + (size - first - 1) / kThreads * kThreads;
    for (unsigned j = 0; j < kAhead; ++j) {
      loaded[j] = load(std::size_t{least(first + j * kThreads, last)});
    }
    for (unsigned j = 0; j < kAhead; ++j) {
      if (first + j * kThreads < size) {
        visit(first + j * kThreads, loaded[j]);
      }
    }
  }
}

/// Replaces numbers[i] with the sum of the numbers before it, for i < Size, and returns the sum of
/// all. `spare` is as long as `numbers`; both are in shared memory.
template <unsigned Size, class Block, class Number>
GTOPK_HOST_DEVICE Number sums_before(Block& block, Number* numbers, Number* spare) {
  constexpr unsigned kRun = 8;
  constexpr unsigned kAhead = sizeof(Number) > sizeof(std::uint64_t) ? kRun / 2 : kRun;
  constexpr unsigned kRuns = Size / kRun;
  static_assert(Size % kRun == 0 && kRuns < Size && kRuns <= kThreads);
  block.each([=](unsigned thread) {
    if (thread < kRuns) {
      Number sum{};
      for (unsigned first = thread * kRun; first < (thread + 1) * kRun; first += kAhead) {
        Number before[kAhead];
        for (unsigned i = 0; i < kAhead; ++i) {
          before[i] = numbers[first + i];
        }
        for (unsigned i = 0; i < kAhead; ++i) {
          const Number here = before[i];
          before[i] = sum;
          sum = sum + here;
        }
        for (unsigned i = 0; i < kAhead; ++i) {
          numbers[first + i] = before[i];
        }
      }
      spare[thread] = sum;
    }
  });
  block.each([=](unsigned thread) {
    Number sum{};
    if (thread < Size) {
      for (unsigned run = 0; run < thread / kRun; ++run) {
        sum = sum + spare[run];
      }
      numbers[thread] = numbers[thread] + sum;
      if (thread + 1 == Size) {
        spare[kRuns] = sum + spare[kRuns - 1];
      }
    }
  });
  return block.read(spare[kRuns]);
}

/// Replaces each of numbers[0, count), in the device's memory, with the sum of the numbers before
/// it; sets numbers[count] to the sum of all, and returns it. Runs as one block, whose threads each
/// add up a run.
template <class Block, class Shared, class Number>
GTOPK_HOST_DEVICE Number sum_up(Block& block, Shared& shared, Number* numbers,
                                std::uint64_t count) {
  const std::uint64_t run = (count + kThreads - 1) / kThreads;
  block.each([&](unsigned thread) {
    Number sum{};
    for (std::uint64_t i = thread * run; i < least((thread + 1) * run, count); ++i) {
      sum = sum + numbers[i];
    }
    shared.sums[thread] = sum;
  });
  const Number all = sums_before<kThreads>(block, shared.sums, shared.spare);
  block.each([&](unsigned thread) {
    Number before = shared.sums[thread];
    for (std::uint64_t i = thread * run; i < least((thread + 1) * run, count); ++i) {
      const Number here = numbers[i];
      numbers[i] = before;
      before = before + here;
    }
    if (thread == 0) {
      numbers[count] = all;
    }
  });
  return all;
}

/// Sorts keys in shared memory in ascending order. Their number is a power of two (bitonic sort).
template <class Block, class Key>
GTOPK_HOST_DEVICE void sort(Block& block, Key* keys, unsigned count) {
  for (unsigned run = 2; run <= count; run *= 2) {
    for (unsigned distance = run / 2; distance != 0; distance /= 2) {
      block.each([=](unsigned thread) {
        for (unsigned i = thread; i < count; i += kThreads) {
          const unsigned other = i ^ distance;
          if (i < other && (keys[other] < keys[i]) == ((i & run) == 0)) {
            const Key here = keys[i];
            keys[i] = keys[other];
            keys[other] = here;
          }
        }
      });
    }
  }
}

/// Marks elements of a tile, and counts the marked ones before each, so that they are written in
/// index order. It lives in shared memory.
struct Marks {
  static constexpr unsigned kWords = kTile / 32;

  std::uint32_t words[kWords];
  std::uint32_t before[kWords];
  std::uint32_t spare[kWords];

  GTOPK_HOST_DEVICE void clear(unsigned thread) {
    for (unsigned word = thread; word < kWords; word += kThreads) {
      words[word] = 0;
    }
  }
  GTOPK_HOST_DEVICE void mark(unsigned element) {
    set_bits(words[element / 32], std::uint32_t{1} << (element % 32));
  }
  [[nodiscard]] GTOPK_HOST_DEVICE bool has(unsigned element) const {
    return ((words[element / 32] >> (element % 32)) & 1U) != 0;
  }
  /// Returns how many elements are marked. Must be called between phases.
  template <class Block>
  GTOPK_HOST_DEVICE std::uint32_t count(Block& block) {
    block.each([this](unsigned thread) {
      for (unsigned word = thread; word < kWords; word += kThreads) {
        before[word] = count_bits(words[word]);
      }
    });
    return sums_before<kWords>(block, before, spare);
  }
  /// Returns how many elements before `element` are marked; count() must have been called.
  [[nodiscard]] GTOPK_HOST_DEVICE std::uint32_t rank(unsigned element) const {
    const std::uint32_t below = (std::uint32_t{1} << (element % 32)) - 1;
    return before[element / 32] + count_bits(words[element / 32] & below);
  }
};

}  // namespace gtopk::sparse::device
