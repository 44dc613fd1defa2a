// CUDA room: kernels of src/gtopk/device on the GPU: a block is a block, a phase ends at a barrier.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "src/gtopk/device/block.hpp"

namespace gtopk::cuda {

class GpuBlock {
 public:
  [[nodiscard]] __host__ __device__ std::uint64_t number() const {
#ifdef __CUDA_ARCH__
    return blockIdx.x;
#else
    return 0;
#endif
  }
  [[nodiscard]] __host__ __device__ std::uint64_t count() const {
#ifdef __CUDA_ARCH__
    return gridDim.x;
#else
    return 1;
#endif
  }
  template <class Phase>
  __host__ __device__ void each(Phase phase) {
#ifdef __CUDA_ARCH__
    phase(threadIdx.x);
    __syncthreads();
#endif
  }
  /// All threads have read it before any of them goes on to write it.
  template <class T>
  [[nodiscard]] __host__ __device__ T read(const T& memory) const {
    const T seen = memory;
#ifdef __CUDA_ARCH__
    __syncthreads();
#endif
    return seen;
  }
};

template <class Kernel>
__global__ void __launch_bounds__(sparse::device::kThreads)
    run(const __grid_constant__ Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  GpuBlock block;
  kernel(block, shared);
}

/// Hands launches to one stream; after an error no more.
class GpuExecutor {
 public:
  explicit GpuExecutor(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {
    int device = 0;
    int processors = 1;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    wide_ = static_cast<std::uint64_t>(processors) * kBlocksEach;
  }

  [[nodiscard]] std::uint64_t wide() const { return wide_; }
  [[nodiscard]] int error() const { return static_cast<int>(error_); }

  template <class Kernel>
  void launch(std::uint64_t blocks, const Kernel& kernel) {
    if (error_ == cudaSuccess) {
      run<<<static_cast<unsigned>(blocks), sparse::device::kThreads, 0, stream_>>>(kernel);
      check(cudaGetLastError());
    }
  }

 private:
  /// Of a multiprocessor: as many as fit of 256 threads.
  static constexpr std::uint64_t kBlocksEach = 8;

  void check(cudaError_t error) {
    if (error_ == cudaSuccess) {
      error_ = error;
    }
  }

  cudaStream_t stream_;
  std::uint64_t wide_ = kBlocksEach;
  cudaError_t error_ = cudaSuccess;
};

/// Has the driver load a kernel in the place of launching it: at its first launch it might
/// synchronise for that.
class LoadingExecutor {
 public:
  [[nodiscard]] std::uint64_t wide() const { return 1; }
  [[nodiscard]] int error() const { return static_cast<int>(error_); }

  template <class Kernel>
  void launch(std::uint64_t /*blocks*/, const Kernel& /*kernel*/) {
    if (error_ == cudaSuccess) {
      cudaFuncAttributes unread;
      error_ = cudaFuncGetAttributes(&unread, run<Kernel>);
    }
  }

 private:
  cudaError_t error_ = cudaSuccess;
};

}  // namespace gtopk::cuda
