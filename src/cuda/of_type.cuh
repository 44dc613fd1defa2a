// CUDA: the calls on tensors of one element type, which a source file compiles
// (GTOPK_CUDA_TYPE) and library.cu selects.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/cuda/calls.hpp"

namespace gtopk::cuda {

template <class T>
struct OfType {
  static int select(const SelectCall& call, void* stream);
  static int commit(const CommitCall& call, void* stream);
  static int accumulate(const AccumulateCall& call, void* stream);
  static int gather(const GatherCall& call, void* stream);
  static int commit_whole(const CommitWholeCall& call, void* stream);
  static int sketch(const SketchCall& call, void* stream);
  static int load();
};

template <class Value>
struct OfValues {
  static int find(const FindCall& call, void* stream);
  static int load();
};

}  // namespace gtopk::cuda
