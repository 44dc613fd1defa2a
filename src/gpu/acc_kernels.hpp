// GPU: the calls on acc that an operation needs from a device while it runs (gtopk/device_acc.hpp).
// A launcher enqueues them on request.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gtopk/device_acc.hpp"
#include "src/cuda/calls.hpp"
#include "src/gpu/launcher.hpp"

namespace gtopk::gpu {

class AccKernels final : public AccDevice {
 public:
  /// `memory` owns the memory of the calls; a launcher releases it. `whole` is in pinned memory and
  /// initially 0; it becomes 1 when all of acc is requested.
  AccKernels(const cuda::Calls& kernels, Launcher& launcher, std::shared_ptr<void> memory,
             std::uint64_t& whole)
      : kernels_(kernels), launcher_(launcher), memory_(std::move(memory)), whole_(whole) {}

  /// Sets the calls that find a sketch's heaviest elements and read acc there.
  void finds_by(const cuda::FindCall& find, const cuda::GatherCall& gather);
  /// Sets the call that writes all of acc. acc is written only if requested: the device checks
  /// `whole`.
  void accumulates_by(const cuda::AccumulateCall& call);

  void accumulate(Done done) override;
  void find(Done done) override { ask(std::move(done)); }

 private:
  void ask(Done done) { launcher_.run({answer_, std::move(done), memory_}); }

  const cuda::Calls& kernels_;
  Launcher& launcher_;
  const std::shared_ptr<void> memory_;
  std::uint64_t& whole_;
  /// Enqueues the calls. It must not refer to this object, which may not outlive the operation.
  std::function<void(Driver::Stream)> answer_;
};

}  // namespace gtopk::gpu
