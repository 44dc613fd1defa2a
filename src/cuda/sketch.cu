// CUDA: kernels that depend only on the type of values, which find the heavy elements of a sketch.
#include "src/cuda/gpu_executor.cuh"
#include "src/cuda/of_type.cuh"
#include "src/cuda/typed_calls.hpp"

namespace gtopk::cuda {

template <class Value>
int OfValues<Value>::find(const FindCall& call, void* stream) {
  GpuExecutor executor(stream);
  cuda::find<Value>(executor, call);
  return executor.error();
}

template <class Value>
int OfValues<Value>::load() {
  LoadingExecutor executor;
  launch_all_of_values<Value>(executor);
  return executor.error();
}

template struct OfValues<float>;
template struct OfValues<double>;

}  // namespace gtopk::cuda
