#include "src/torch_backend/future_callbacks.hpp"

#include <mutex>

namespace gtopk::torch_backend {
namespace {

using Future = c10::ivalue::Future;

std::size_t count_callbacks(Future& future);

/// An explicit instantiation may name private members. If they have other names in a version of
/// torch, this does not compile.
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
