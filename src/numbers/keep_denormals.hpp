// Numbers: denormals are treated like any other value. A host program may have asked its threads to
// flush them (torch.set_flush_denormal does, and new threads inherit it), which would make one rank
// select differently from another. This header does not know lists.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace gtopk {

/// While it lives, this thread's arithmetic keeps denormals and rounds to nearest; afterwards the
/// host's settings apply again.
class KeepDenormals {
 public:
  KeepDenormals() : before_(control()) {
    if ((before_ & kAltering) != 0) {
      set_control(before_ & ~kAltering);
    }
  }

  ~KeepDenormals() {
    if ((before_ & kAltering) != 0) {
      set_control(before_);
    }
  }

  KeepDenormals(const KeepDenormals&) = delete;
  KeepDenormals& operator=(const KeepDenormals&) = delete;

 private:
  // The barrier keeps loads for the arithmetic on their side of the change.
#if defined(__SSE2__)
  using Control = std::uint32_t;
  static constexpr Control kAltering = 0x8000U | 0x6000U | 0x0040U;  // FTZ, rounding, DAZ
  static Control control() { return _mm_getcsr(); }
  static void set_control(Control value) {
    _mm_setcsr(value);
    asm volatile("" ::: "memory");
  }
#elif defined(__aarch64__)
  using Control = std::uint64_t;
  static constexpr Control kAltering = (1U << 24U) | (3U << 22U) | (1U << 19U);  // FZ, RMode, FZ16
  static Control control() {
    Control value = 0;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(Control value) { asm volatile("msr fpcr, %0" ::"r"(value) : "memory"); }
#else
  using Control = std::uint32_t;
  static constexpr Control kAltering = 0;
  static Control control() { return 0; }
  static void set_control(Control) {}
#endif

  Control before_;
};

}  // namespace gtopk
