// CUDA room: what knows no element type but that of values: the merge of two lists, and what is
// heavy in a sketch.
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

template <class Value>
int OfLists<Value>::find(const FindCall& call, void* stream) {
  GpuExecutor executor(stream);
  cuda::find<Value>(executor, call);
  return executor.error();
}

template <class Value>
int OfLists<Value>::load() {
  LoadingExecutor executor;
  launch_all_of_lists<Value>(executor);
  return executor.error();
}

template int OfLists<float>::merge(const MergeCall&, void*);
template int OfLists<float>::find(const FindCall&, void*);
template int OfLists<float>::load();
template int OfLists<double>::merge(const MergeCall&, void*);
template int OfLists<double>::find(const FindCall&, void*);
template int OfLists<double>::load();

}  // namespace gtopk::cuda
