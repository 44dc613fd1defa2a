// GPU room: what an operation asks of acc on a device while it runs (gtopk/device_acc.hpp). A
// launcher enqueues it then; or it was enqueued when the operation was called, on a stream that
// waits for the question.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "gtopk/device_acc.hpp"
#include "src/cuda/calls.hpp"
#include "src/gpu/launcher.hpp"
#include "src/gpu/list_kernels.hpp"

namespace gtopk::gpu {

class AccKernels final : public AccDevice {
 public:
  /// asked: in pinned memory, 0.
  AccKernels(const cuda::Calls& kernels, Launcher& launcher, const cuda::VectorOf& acc,
             const StepMemory& memory, std::atomic<std::uint32_t>& asked)
      : kernels_(kernels), launcher_(launcher), acc_(acc), memory_(memory), asked_(asked) {}

  /// How a sketch's heaviest elements are found, and acc there.
  void finds_by(const cuda::FindCall& find, const cuda::GatherCall& gather) {
    find_ = find;
    gather_ = gather;
  }
  /// find_ahead() will be called, maybe after find().
  void expect_find_ahead() { ahead_ = std::make_shared<Ahead>(); }
  /// Enqueues what find() wants on a stream that waits, on the device, until it is asked for.
  void find_ahead(Driver::Stream stream);
  /// It has failed, or will not be called: find() fails, with that. Any thread.
  void broken(std::exception_ptr why);
  /// Nobody will ask any more. Does not call the driver.
  void let_go() noexcept { asked_.store(1, std::memory_order_release); }

  void accumulate(Done done) override;
  [[nodiscard]] void* sums() const override { return *sums_; }
  void find(Done done) override;

 private:
  /// Of a find that was enqueued ahead.
  struct Ahead {
    enum class Turn : std::uint8_t { kNobodys, kAsked, kBroken };
    /// The second of find() and broken() finds what the first has left.
    std::atomic<Turn> turn = Turn::kNobodys;
    Done done;
    std::exception_ptr why;
  };

  /// The calls of a find.
  [[nodiscard]] std::function<void(Driver::Stream)> finding() const;

  const cuda::Calls& kernels_;
  Launcher& launcher_;
  const cuda::VectorOf acc_;
  const StepMemory memory_;
  std::atomic<std::uint32_t>& asked_;
  cuda::FindCall find_;
  cuda::GatherCall gather_;
  std::shared_ptr<void*> sums_ = std::make_shared<void*>(nullptr);
  std::shared_ptr<Ahead> ahead_;  ///< set before it is asked; null: by the launcher
};

}  // namespace gtopk::gpu
