// CUDA room: the library's one symbol. Nothing here comes to a driver before a call does.
#include <cuda_runtime.h>

#include <initializer_list>

#include "src/cuda/calls.hpp"
#include "src/cuda/of_type.cuh"
#include "src/cuda/typed_calls.hpp"
#include "src/numbers/half.hpp"

namespace gtopk::cuda {
namespace {

/// Calls f.operator()<T>() with an element type; cudaErrorInvalidValue for one without kernels.
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

std::size_t room_to_select(const VectorOf& acc, const SelectionRule& rule) {
  return acc.dtype == DataType::kFloat64 ? select_room<double>(acc, rule)
                                         : select_room<float>(acc, rule);
}

std::size_t room_to_merge(DataType values, std::uint32_t index_bytes, std::uint64_t entries) {
  return values == DataType::kFloat64 ? merge_room<double>(index_bytes, entries)
                                      : merge_room<float>(index_bytes, entries);
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

int inspect_on(const InspectCall& call, void* stream) {
  return visit_element(call.dtype,
                       [&]<class T>() -> int { return OfType<T>::inspect(call, stream); });
}

int commit_lists_on(const CommitListsCall& call, void* stream) {
  return visit_element(call.acc.dtype,
                       [&]<class T>() -> int { return OfType<T>::commit_lists(call, stream); });
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

std::size_t room_to_sketch(DataType values, std::uint64_t columns, std::uint64_t d,
                           std::uint64_t most) {
  return values == DataType::kFloat64 ? sketch_room<double>(columns, d, most)
                                      : sketch_room<float>(columns, d, most);
}

int find_on(const FindCall& call, void* stream) {
  return call.values == DataType::kFloat64 ? OfLists<double>::find(call, stream)
                                           : OfLists<float>::find(call, stream);
}

int merge_on(const MergeCall& call, void* stream) {
  switch (call.values) {
    case DataType::kFloat32:
      return OfLists<float>::merge(call, stream);
    case DataType::kFloat64:
      return OfLists<double>::merge(call, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

int load_all() {
  for (const auto load : {OfType<float>::load, OfType<double>::load, OfType<Bfloat16>::load,
                          OfType<Float16>::load, OfLists<float>::load, OfLists<double>::load,
                          OfLists<float>::load_coding, OfLists<double>::load_coding}) {
    if (const int error = load(); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

std::size_t room_to_code(std::uint64_t entries, std::uint64_t bytes) {
  return coding_room(entries, bytes);
}

int decode_on(const DecodeCall& call, void* stream) {
  switch (call.values) {
    case DataType::kFloat32:
      return OfLists<float>::decode(call, stream);
    case DataType::kFloat64:
      return OfLists<double>::decode(call, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

int close_on(const CloseCall& call, void* stream) {
  switch (call.values) {
    case DataType::kFloat32:
      return OfLists<float>::close(call, stream);
    case DataType::kFloat64:
      return OfLists<double>::close(call, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

const char* error_name(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }

}  // namespace
}  // namespace gtopk::cuda

extern "C" __attribute__((visibility("default"))) const gtopk::cuda::Calls* gtopk_cuda_calls() {
  using namespace gtopk::cuda;
  static constexpr Calls kCalls{Calls::kVersion, number_tiles,   room_to_select,  room_to_merge,
                                select_on,       commit_on,      merge_on,        accumulate_on,
                                error_name,      inspect_on,     commit_lists_on, gather_on,
                                commit_whole_on, room_to_sketch, sketch_on,       find_on,
                                load_all,        room_to_code,   decode_on,       close_on};
  return &kCalls;
}
