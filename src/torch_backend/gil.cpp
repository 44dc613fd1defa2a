#include "src/torch_backend/gil.hpp"

// These functions belong to Python's stable C interface and are in the process, because torch uses
// them. PyThreadState* is void* here. NOLINTBEGIN(readability-identifier-naming)
extern "C" {
int Py_IsInitialized();
int PyGILState_Check();
void* PyEval_SaveThread();
void PyEval_RestoreThread(void* state);
}
// NOLINTEND(readability-identifier-naming)

namespace gtopk::torch_backend {

WithoutGil::WithoutGil() {
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    released_ = PyEval_SaveThread();
  }
}

WithoutGil::~WithoutGil() {
  if (released_ != nullptr) {
    PyEval_RestoreThread(released_);
  }
}

}  // namespace gtopk::torch_backend
