// Test support: threads for two blocks of a kernel, which run at the same time.
#pragma once

#include <pthread.h>

#include <array>
#include <functional>
#include <thread>
#include <vector>

#include "src/gtopk/device/block.hpp"

namespace gtopk::sparse::testing {

/// The system's, as std::barrier spins before it sleeps: with so many threads on few cores that
/// takes several times as long.
class Barrier {
 public:
  explicit Barrier(unsigned threads = device::kThreads) {
    pthread_barrier_init(&barrier_, nullptr, threads);
  }
  ~Barrier() { pthread_barrier_destroy(&barrier_); }
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;
  Barrier(Barrier&&) = delete;
  Barrier& operator=(Barrier&&) = delete;

  void wait() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_{};
};

/// What a block's threads meet at, as one of them sees it: one barrier and another in turn. To
/// ThreadSanitizer a thread that leaves a barrier late has seen all that others did before they
/// came to the same one again, so that with one alone it would miss races.
class PhaseBarrier {
 public:
  using Barriers = std::array<Barrier, 2>;

  explicit PhaseBarrier(Barriers& barriers) : barriers_(barriers) {}
  void wait() { barriers_[round_++ % 2].wait(); }

 private:
  Barriers& barriers_;
  unsigned round_ = 0;
};

/// The threads live as long as the object: starting them takes longer than most launches.
class BlockThreads {
 public:
  static constexpr unsigned kBlocks = 2;
  using Body = std::function<void(unsigned block, unsigned thread, PhaseBarrier& barrier)>;

  BlockThreads() {
    for (unsigned block = 0; block < kBlocks; ++block) {
      for (unsigned thread = 0; thread < device::kThreads; ++thread) {
        threads_.emplace_back([this, block, thread] { serve(block, thread); });
      }
    }
  }
  ~BlockThreads() {
    const Body none;
    body_ = &none;
    begin_.wait();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }
  BlockThreads(const BlockThreads&) = delete;
  BlockThreads& operator=(const BlockThreads&) = delete;
  BlockThreads(BlockThreads&&) = delete;
  BlockThreads& operator=(BlockThreads&&) = delete;

  /// Runs `body` in all threads. They begin together: otherwise one block might end before the
  /// other begins, which would then see all that it has written.
  void run(const Body& body) {
    body_ = &body;
    begin_.wait();
    end_.wait();
  }

 private:
  void serve(unsigned block, unsigned thread) {
    for (begin_.wait(); *body_; begin_.wait()) {
      PhaseBarrier barrier(of_block_[block]);
      (*body_)(block, thread, barrier);
      end_.wait();
    }
  }

  const Body* body_ = nullptr;
  Barrier begin_{kBlocks * device::kThreads + 1};
  Barrier end_{kBlocks * device::kThreads + 1};
  std::array<PhaseBarrier::Barriers, kBlocks> of_block_;
  std::vector<std::thread> threads_;
};

}  // namespace gtopk::sparse::testing
