// Numbers: the mark of functions that the CPU and the GPU share, so that both give the same bits.
#pragma once

#ifdef __CUDACC__
#define GTOPK_HOST_DEVICE __host__ __device__
#else
#define GTOPK_HOST_DEVICE
#endif
