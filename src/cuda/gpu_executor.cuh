// CUDA: runs the kernels of src/gtopk/device on the GPU: a block is a thread block, and a
// phase ends at a barrier.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "src/gtopk/device/block.hpp"

namespace gtopk::cuda {

class GpuBlock {
 public:
  [[nodiscard]] __host__ __device__ std::uint64_t number() const {
#ifdef __CUDA_ARCH__
    return alone_ ? 0 : blockIdx.x;
#else
    return 0;
#endif
  }
  [[nodiscard]] __host__ __device__ std::uint64_t count() const {
#ifdef __CUDA_ARCH__
    return alone_ ? 1 : gridDim.x;
#else
    return 1;
#endif
  }
  /// Returns the same threads as the only block of a launch.
  [[nodiscard]] __host__ __device__ GpuBlock alone() const {
    GpuBlock block;
    block.alone_ = true;
    return block;
  }
  /// Whether all other blocks have reached this point before; this block then sees everything that
  /// they have written. `is_last` is in shared memory.
  [[nodiscard]] __host__ __device__ bool comes_last(std::uint32_t& ended,
                                                    std::uint32_t& is_last) const {
#ifdef __CUDA_ARCH__
    __syncthreads();  // thread 0 publishes what all threads of the block have written
    if (threadIdx.x == 0) {
      __threadfence();
      const bool last = atomicAdd(&ended, 1U) + 1 == gridDim.x;
      if (last) {
        __threadfence();  // and sees what the other blocks' threads have written
        ended = 0;
      }
      is_last = last ? 1 : 0;
    }
    __syncthreads();
    return is_last != 0;
#else
    return ended == 0 && is_last == 0;
#endif
  }
  template <class Phase>
  __host__ __device__ void each(Phase phase) {
#ifdef __CUDA_ARCH__
    phase(threadIdx.x);
    __syncthreads();
#endif
  }
  /// Reads a value. All threads have read it before any of them continues and writes it.
  template <class T>
  [[nodiscard]] __host__ __device__ T read(const T& memory) const {
    const T seen = memory;
#ifdef __CUDA_ARCH__
    __syncthreads();
#endif
    return seen;
  }

 private:
  bool alone_ = false;
};

/// Blocks per multiprocessor: the number of blocks of 256 threads that any GPU from sm_80 on can
/// hold (some hold 1536 threads, others 2048). The compiler limits registers accordingly.
inline constexpr unsigned kBlocksEach = 6;

template <class Kernel>
__global__ void __launch_bounds__(sparse::device::kThreads, kBlocksEach)
    run(const __grid_constant__ Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  GpuBlock block;
  kernel(block, shared);
}

/// The number of launches that the driver has accepted.
inline std::atomic<std::uint64_t> launched = 0;

/// Enqueues launches on one stream; after an error it enqueues no more.
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
      launched += error_ == cudaSuccess ? 1 : 0;
    }
  }

 private:
  void check(cudaError_t error) {
    if (error_ == cudaSuccess) {
      error_ = error;
    }
  }

  cudaStream_t stream_;
  std::uint64_t wide_ = kBlocksEach;
  cudaError_t error_ = cudaSuccess;
};

/// Makes the driver load a kernel instead of launching it, because the first launch might
/// synchronise to load it.
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
