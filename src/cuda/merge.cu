// CUDA room: the merge of two lists, of every type.
#include "src/cuda/gpu_executor.cuh"
#include "src/cuda/of_type.cuh"
#include "src/cuda/typed_calls.hpp"

namespace gtopk::cuda {

template <class Value>
int OfLists<Value>::merge(const MergeCall& call, void* stream) {
  GpuExecutor executor(stream);
  cuda::merge<Value>(executor, call);
  return executor.error();
}

template struct OfLists<float>;
template struct OfLists<double>;

}  // namespace gtopk::cuda
