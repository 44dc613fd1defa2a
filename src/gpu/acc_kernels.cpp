#include "src/gpu/acc_kernels.hpp"

#include <utility>

#include "src/gpu/step.hpp"

namespace gtopk::gpu {

std::function<void(Driver::Stream)> AccKernels::finding() const {
  // Not of this: it may be gone once the operation is.
  return [find = find_, gather = gather_, &kernels = kernels_,
          &launcher = launcher_](Driver::Stream stream) {
    check_kernels(kernels, kernels.find(find, stream), launcher.device(), "find what is heavy");
    check_kernels(kernels, kernels.gather(gather, stream), launcher.device(), "gather");
  };
}

void AccKernels::find_ahead(Driver::Stream stream) {
  const Driver& driver = launcher_.driver();
  driver.check(driver.wait_value(stream, reinterpret_cast<std::uint64_t>(&asked_), 1, 0),
               "let a stream wait for a number in memory");
  finding()(stream);
  auto held = std::make_unique<std::shared_ptr<Ahead>>(ahead_);
  const auto tell = [](void* argument) {
    const std::unique_ptr<std::shared_ptr<Ahead>> told(
        static_cast<std::shared_ptr<Ahead>*>(argument));
    if (const Done done = std::exchange((*told)->done, nullptr)) {
      done(nullptr);
    }
  };
  driver.check(driver.launch_host_function(stream, tell, held.get()), "call back");
  static_cast<void>(held.release());
}

void AccKernels::find(Done done) {
  if (ahead_ == nullptr) {
    launcher_.run({finding(), std::move(done), memory_.owner});
    return;
  }
  ahead_->done = std::move(done);
  if (ahead_->turn.exchange(Ahead::Turn::kAsked) == Ahead::Turn::kBroken) {
    std::exchange(ahead_->done, nullptr)(ahead_->why);
    return;
  }
  asked_.store(1, std::memory_order_release);
}

void AccKernels::broken(std::exception_ptr why) {
  if (ahead_ == nullptr) {
    return;
  }
  ahead_->why = std::move(why);
  if (ahead_->turn.exchange(Ahead::Turn::kBroken) == Ahead::Turn::kAsked) {
    std::exchange(ahead_->done, nullptr)(ahead_->why);
  }
}

void AccKernels::accumulate(Done done) {
  const std::size_t bytes = acc_.d * size_of(accumulation_type(acc_.dtype));
  const auto take = [bytes, sums = sums_, take = memory_.take_pinned] { *sums = take(bytes); };
  const auto launch = [acc = acc_, sums = sums_, &kernels = kernels_,
                       &launcher = launcher_](Driver::Stream stream) {
    check_kernels(kernels, kernels.accumulate(cuda::AccumulateCall{acc, *sums}, stream),
                  launcher.device(), "accumulate");
  };
  launcher_.run({launch, std::move(done), memory_.owner, take});
}

}  // namespace gtopk::gpu
