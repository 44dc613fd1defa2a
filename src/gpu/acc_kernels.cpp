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
    (*told)->tell(nullptr);
  };
  driver.check(driver.launch_host_function(stream, tell, held.get()), "call back");
  static_cast<void>(held.release());
}

void AccKernels::accumulate(Done done) {
  whole_ = 1;
  ask(std::move(done));
}

void AccKernels::ask(Done done) {
  if (by_launcher_) {
    launcher_.run({answer_, std::move(done), memory_});
    return;
  }
  std::exception_ptr broken;
  {
    const std::lock_guard lock(ahead_->mutex);
    ahead_->done = std::move(done);
    broken = ahead_->why;
  }
  if (broken) {
    ahead_->tell(broken);
  } else {
    asked_.store(1, std::memory_order_release);
  }
}

void AccKernels::broken(const std::exception_ptr& why) {
  {
    const std::lock_guard lock(ahead_->mutex);
    ahead_->why = why;
  }
  ahead_->tell(why);
}

}  // namespace gtopk::gpu
