// Torch backend: the GIL. No Python header is included, so that one library serves every version of
// Python.
#pragma once

namespace gtopk::torch_backend {

/// Releases the GIL if this thread holds it, for code that waits for threads that may need the GIL.
class WithoutGil {
 public:
  WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  WithoutGil(WithoutGil&&) = delete;
  WithoutGil& operator=(WithoutGil&&) = delete;
  ~WithoutGil();

 private:
  void* released_ = nullptr;  // the thread's state; null if it did not hold the GIL
};

}  // namespace gtopk::torch_backend
