// Tests, sparse: a host program whose threads flush denormals, as with
// torch.set_flush_denormal(True).
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace gtopk::sparse::testing {

class FlushDenormals {
 public:
  FlushDenormals() {
#if defined(__SSE2__)
    before_ = _mm_getcsr();
    _mm_setcsr(static_cast<std::uint32_t>(before_) | 0x8040U);
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" ::"r"(before_ | (1U << 24U)) : "memory");
#endif
  }
  ~FlushDenormals() {
#if defined(__SSE2__)
    _mm_setcsr(static_cast<std::uint32_t>(before_));
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" ::"r"(before_) : "memory");
#endif
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  std::uint64_t before_ = 0;
};

}  // namespace gtopk::sparse::testing
