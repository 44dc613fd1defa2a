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
  explicit Barrier(unsigned threads) { pthread_barrier_init(&barrier_, nullptr, threads); }
  ~Barrier() { pthread_barrier_destroy(&barrier_); }
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;
  Barrier(Barrier&&) = delete;
  Barrier& operator=(Barrier&&) = delete;

  void wait() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_{};
};

/// The threads live as long as the object: starting them takes longer than most launches.
class BlockThreads {
 public:
  static constexpr unsigned kBlocks = 2;
  using Body = std::function<void(unsigned block, unsigned thread, Barrier& barrier)>;

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
    all_.wait();
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
    all_.wait();
    all_.wait();
  }

 private:
  void serve(unsigned block, unsigned thread) {
    for (all_.wait(); *body_; all_.wait()) {
      (*body_)(block, thread, of_block_[block]);
      all_.wait();
    }
  }

  const Body* body_ = nullptr;
  Barrier all_{kBlocks * device::kThreads + 1};
  std::array<Barrier, kBlocks> of_block_{Barrier(device::kThreads), Barrier(device::kThreads)};
  std::vector<std::thread> threads_;
};

}  // namespace gtopk::sparse::testing
