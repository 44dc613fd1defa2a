// CUDA: the library's one symbol. No code here uses the driver before a call does.
#include <cuda_runtime.h>

#include <initializer_list>

#include "src/cuda/calls.hpp"
#include "src/cuda/gpu_executor.cuh"
#include "src/cuda/of_type.cuh"
#include "src/cuda/typed_calls.hpp"
#include "src/numbers/half.hpp"

namespace gtopk::cuda {
namespace {

/// Calls f.operator()<T>() with an element type; returns cudaErrorInvalidValue for a type without
/// kernels.
template <class F>
int visit_element(DataType type, F f) {
  switch (type) {
    case DataType::kFloat32:
      return f.template operator()<float>();
    case DataType::kFloat64:
      return f.template operator()<double>();
    case DataType::kBfloat16:
      return f.template operator()<Bfloat16>();
    case DataType::kFloat16:
      return f.template operator()<Float16>();
    default:
      return cudaErrorInvalidValue;
  }
}

std::uint64_t number_tiles(PieceOf* pieces, std::uint32_t count) {
  return device::number_tiles(reinterpret_cast<device::Piece<float>*>(pieces), count);
}

std::size_t bytes_to_select(const VectorOf& acc, const SelectionRule& rule) {
  return acc.dtype == DataType::kFloat64 ? select_workspace_bytes<double>(acc, rule)
                                         : select_workspace_bytes<float>(acc, rule);
}

int select_on(const SelectCall& call, void* stream) {
  return visit_element(call.acc.dtype,
                       [&]<class T>() -> int { return OfType<T>::select(call, stream); });
}

int commit_on(const CommitCall& call, void* stream) {
  return visit_element(call.acc.dtype,
                       [&]<class T>() -> int { return OfType<T>::commit(call, stream); });
}

int accumulate_on(const AccumulateCall& call, void* stream) {
  return visit_element(call.acc.dtype,
                       [&]<class T>() -> int { return OfType<T>::accumulate(call, stream); });
}

int gather_on(const GatherCall& call, void* stream) {
  return visit_element(call.acc.dtype,
                       [&]<class T>() -> int { return OfType<T>::gather(call, stream); });
}

int commit_whole_on(const CommitWholeCall& call, void* stream) {
  return visit_element(call.acc.dtype,
                       [&]<class T>() -> int { return OfType<T>::commit_whole(call, stream); });
}

int sketch_on(const SketchCall& call, void* stream) {
  return visit_element(call.acc.dtype,
                       [&]<class T>() -> int { return OfType<T>::sketch(call, stream); });
}

std::size_t bytes_to_sketch(DataType values, std::uint64_t columns, std::uint64_t d,
                            std::uint64_t most) {
  return values == DataType::kFloat64 ? sketch_workspace_bytes<double>(columns, d, most)
                                      : sketch_workspace_bytes<float>(columns, d, most);
}

int find_on(const FindCall& call, void* stream) {
  return call.values == DataType::kFloat64 ? OfValues<double>::find(call, stream)
                                           : OfValues<float>::find(call, stream);
}

int load_of(DataType dtype) {
  return visit_element(dtype, [&]<class T>() -> int {
    for (const auto load : {OfType<T>::load, OfValues<Accumulation<T>>::load}) {
      if (const int error = load(); error != cudaSuccess) {
        return error;
      }
    }
    return cudaSuccess;
  });
}

std::uint64_t kernels_launched() { return launched.load(); }

const char* error_name(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }

}  // namespace
}  // namespace gtopk::cuda

extern "C" __attribute__((visibility("default"))) const gtopk::cuda::Calls* gtopk_cuda_calls() {
  using namespace gtopk::cuda;
  static constexpr Calls kCalls{Calls::kVersion, number_tiles,    bytes_to_select, select_on,
                                commit_on,       accumulate_on,   error_name,      gather_on,
                                commit_whole_on, bytes_to_sketch, sketch_on,       find_on,
                                load_of,         kernels_launched};
  return &kCalls;
}
