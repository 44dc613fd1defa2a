#include "src/torch_backend/future_callbacks.hpp"

#include <mutex>

namespace gtopk::torch_backend {
namespace {

using Future = c10::ivalue::Future;

std::size_t count_callbacks(Future& future);

/// Gives access to private members, which an explicit instantiation may name. If a version of torch
/// has other names, this does not compile.
template <auto Mutex, auto CallbackList>
struct Members {
  friend std::size_t count_callbacks(Future& future) {
    const std::lock_guard lock(future.*Mutex);
    return (future.*CallbackList).size();
  }
};

template struct Members<&Future::mutex_, &Future::callbacks_>;

}  // namespace

std::size_t callbacks_of(Future& future) { return count_callbacks(future); }

}  // namespace gtopk::torch_backend
