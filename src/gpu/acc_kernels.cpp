#include "src/gpu/acc_kernels.hpp"

#include <utility>

#include "src/gpu/step.hpp"

namespace gtopk::gpu {

void AccKernels::finds_by(const cuda::FindCall& find, const cuda::GatherCall& gather) {
  answer_ = [find, gather, &kernels = kernels_, &launcher = launcher_](Driver::Stream stream) {
    check_kernels(kernels, kernels.find(find, stream), launcher.device(), "find what is heavy");
    check_kernels(kernels, kernels.gather(gather, stream), launcher.device(), "gather");
  };
}

void AccKernels::accumulates_by(const cuda::AccumulateCall& call) {
  answer_ = [call, &kernels = kernels_, &launcher = launcher_](Driver::Stream stream) {
    check_kernels(kernels, kernels.accumulate(call, stream), launcher.device(), "accumulate");
  };
}

void AccKernels::answer_ahead(Driver::Stream stream) {
  const Driver& driver = launcher_.driver();
  driver.check(driver.wait_value(stream, reinterpret_cast<std::uint64_t>(&asked_), 1, 0),
               "let a stream wait for a number in memory");
  answer_(stream);
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

void AccKernels::accumulate(Done done) {
  whole_ = 1;
  ask(std::move(done));
}

void AccKernels::ask(Done done) {
  if (ahead_ == nullptr) {
    launcher_.run({answer_, std::move(done), memory_});
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

}  // namespace gtopk::gpu
