#include "src/torch_backend/signals.hpp"

#include <unistd.h>

#include <utility>

// These functions belong to Python's stable C interface and are in the process, because torch uses
// them. PyObject*, PyThreadState* and the enumeration of PyGILState_Ensure() are void* and int
// here. NOLINTBEGIN(readability-identifier-naming)
extern "C" {
int Py_IsInitialized();
void* PyGILState_GetThisThreadState();
int PyGILState_Ensure();
void PyGILState_Release(int state);
int PyErr_CheckSignals();
void PyErr_Fetch(void** type, void** value, void** traceback);
void PyErr_Restore(void* type, void* value, void* traceback);
void Py_DecRef(void* object);
}
// NOLINTEND(readability-identifier-naming)

namespace gtopk::torch_backend {

/// An error taken from Python. This struct owns its three objects until they are given back to
/// Python.
struct HandlerRaised::PythonError {
  void* type = nullptr;
  void* value = nullptr;
  void* traceback = nullptr;

  PythonError() { PyErr_Fetch(&type, &value, &traceback); }
  PythonError(const PythonError&) = delete;
  PythonError& operator=(const PythonError&) = delete;
  PythonError(PythonError&&) = delete;
  PythonError& operator=(PythonError&&) = delete;
  ~PythonError() {
    if (type == nullptr || Py_IsInitialized() == 0) {
      return;
    }
    const int state = PyGILState_Ensure();
    Py_DecRef(type);
    Py_DecRef(value);
    Py_DecRef(traceback);
    PyGILState_Release(state);
  }
};

HandlerRaised::HandlerRaised(std::shared_ptr<PythonError> error)
    : builtin_exception("a signal's handler raised an exception"), error_(std::move(error)) {}

void HandlerRaised::set_error() const {
  PyErr_Restore(std::exchange(error_->type, nullptr), error_->value, error_->traceback);
}

void run_signal_handlers() {
  const bool main_thread = gettid() == getpid();
  // Without a state, this thread has never run Python. While Python is shutting down, there is no
  // state to take.
  if (!main_thread || Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() == nullptr) {
    return;
  }
  std::shared_ptr<HandlerRaised::PythonError> error;
  const int state = PyGILState_Ensure();
  if (PyErr_CheckSignals() != 0) {
    error = std::make_shared<HandlerRaised::PythonError>();
  }
  PyGILState_Release(state);
  if (error) {
    throw HandlerRaised(std::move(error));
  }
}

}  // namespace gtopk::torch_backend
