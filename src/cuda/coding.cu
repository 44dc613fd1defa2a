// CUDA room: lists as messages and back, of every type.
#include "src/cuda/gpu_executor.cuh"
#include "src/cuda/of_type.cuh"
#include "src/cuda/typed_calls.hpp"

namespace gtopk::cuda {

template <class Value>
int OfLists<Value>::decode(const DecodeCall& call, void* stream) {
  GpuExecutor executor(stream);
  cuda::decode<Value>(executor, call);
  return executor.error();
}

template <class Value>
int OfLists<Value>::close(const CloseCall& call, void* stream) {
  GpuExecutor executor(stream);
  cuda::close<Value>(executor, call);
  return executor.error();
}

template <class Value>
int OfLists<Value>::load_coding() {
  LoadingExecutor executor;
  launch_all_of_coding<Value>(executor);
  return executor.error();
}

template int OfLists<float>::decode(const DecodeCall&, void*);
template int OfLists<double>::decode(const DecodeCall&, void*);
template int OfLists<float>::close(const CloseCall&, void*);
template int OfLists<double>::close(const CloseCall&, void*);
template int OfLists<float>::load_coding();
template int OfLists<double>::load_coding();

}  // namespace gtopk::cuda
