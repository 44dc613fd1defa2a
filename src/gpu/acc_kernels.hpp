// GPU room: what an operation asks of acc on a device while it runs (gtopk/device_acc.hpp). A
// launcher enqueues it then; or it was enqueued when the operation was called, on a stream that
// waits for the question.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "gtopk/device_acc.hpp"
#include "src/cuda/calls.hpp"
#include "src/gpu/launcher.hpp"

namespace gtopk::gpu {

class AccKernels final : public AccDevice {
 public:
  /// memory: owns what the calls work on; a launcher lets it go. asked and whole: in pinned memory,
  /// 0; `whole` becomes 1 when all of acc is asked for.
  AccKernels(const cuda::Calls& kernels, Launcher& launcher, std::shared_ptr<void> memory,
             std::atomic<std::uint32_t>& asked, std::uint64_t& whole)
      : kernels_(kernels),
        launcher_(launcher),
        memory_(std::move(memory)),
        asked_(asked),
        whole_(whole) {}

  /// How a sketch's heaviest elements are found, and acc there.
  void finds_by(const cuda::FindCall& find, const cuda::GatherCall& gather);
  /// How all of acc is written. Only if it is asked for: the device looks at `whole`.
  void accumulates_by(const cuda::AccumulateCall& call);
  /// answer_ahead() will be called, maybe after the question.
  void expect_answer_ahead() { by_launcher_ = false; }
  /// Enqueues the answer on a stream that waits, on the device, until it is asked for.
  void answer_ahead(Driver::Stream stream);
  /// It has failed, or will not be called: the question fails, with that. Any thread.
  void broken(const std::exception_ptr& why);
  /// Nobody will ask any more. Does not call the driver.
  void let_go() noexcept { asked_.store(1, std::memory_order_release); }

  void accumulate(Done done) override;
  void find(Done done) override { ask(std::move(done)); }

 private:
  /// Of an answer that was enqueued ahead.
  struct Ahead {
    std::mutex mutex;
    Done done;               ///< of a question without an answer
    std::exception_ptr why;  ///< nobody will answer

    void tell(const std::exception_ptr& error) {
      std::unique_lock lock(mutex);
      const Done told = std::exchange(done, nullptr);
      lock.unlock();
      if (told) {
        told(error);
      }
    }
  };

  void ask(Done done);

  const cuda::Calls& kernels_;
  Launcher& launcher_;
  const std::shared_ptr<void> memory_;
  std::atomic<std::uint32_t>& asked_;
  std::uint64_t& whole_;
  /// Enqueues the calls. Not of this: it may be gone once the operation is.
  std::function<void(Driver::Stream)> answer_;
  bool by_launcher_ = true;  ///< set before it is asked
  const std::shared_ptr<Ahead> ahead_ = std::make_shared<Ahead>();
};

}  // namespace gtopk::gpu
