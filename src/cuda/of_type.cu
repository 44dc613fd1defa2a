// CUDA: the calls on tensors of one element type. This file is compiled once for each type.
#include "src/cuda/of_type.cuh"

#include "src/cuda/gpu_executor.cuh"
#include "src/cuda/typed_calls.hpp"

namespace gtopk::cuda {

template <class T>
int OfType<T>::select(const SelectCall& call, void* stream) {
  GpuExecutor executor(stream);
  cuda::select<T>(executor, call);
  return executor.error();
}

template <class T>
int OfType<T>::commit(const CommitCall& call, void* stream) {
  GpuExecutor executor(stream);
  cuda::commit<T>(executor, call);
  return executor.error();
}

template <class T>
int OfType<T>::accumulate(const AccumulateCall& call, void* stream) {
  GpuExecutor executor(stream);
  cuda::accumulate<T>(executor, call);
  return executor.error();
}

template <class T>
int OfType<T>::gather(const GatherCall& call, void* stream) {
  GpuExecutor executor(stream);
  cuda::gather<T>(executor, call);
  return executor.error();
}

template <class T>
int OfType<T>::commit_whole(const CommitWholeCall& call, void* stream) {
  GpuExecutor executor(stream);
  cuda::commit_whole<T>(executor, call);
  return executor.error();
}

template <class T>
int OfType<T>::sketch(const SketchCall& call, void* stream) {
  GpuExecutor executor(stream);
  cuda::sketch<T>(executor, call);
  return executor.error();
}

template <class T>
int OfType<T>::load() {
  LoadingExecutor executor;
  launch_all_of_type<T>(executor);
  return executor.error();
}

template struct OfType<GTOPK_CUDA_TYPE>;

}  // namespace gtopk::cuda
