#include "src/gpu/acc_kernels.hpp"

#include <utility>

#include "src/gpu/step.hpp"

namespace gtopk::gpu {

void AccKernels::finds_by(const cuda::FindCall& find, const cuda::GatherCall& gather) {
  answer_ = [find, gather, &kernels = kernels_, &launcher = launcher_](Driver::Stream stream) {
    check_kernels(kernels, kernels.find(find, stream), launcher.device(),
                  "find the heaviest entries");
    check_kernels(kernels, kernels.gather(gather, stream), launcher.device(), "gather");
  };
}

void AccKernels::accumulates_by(const cuda::AccumulateCall& call) {
  answer_ = [call, &kernels = kernels_, &launcher = launcher_](Driver::Stream stream) {
    check_kernels(kernels, kernels.accumulate(call, stream), launcher.device(), "accumulate");
  };
}

void AccKernels::accumulate(Done done) {
  whole_ = 1;
  ask(std::move(done));
}

}  // namespace gtopk::gpu
