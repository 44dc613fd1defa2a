#include "torch_backend/runtime.hpp"

#include <mutex>

namespace gtopk::torch_backend {

std::shared_ptr<Runtime> Runtime::get() {
  static std::mutex mutex;
  static std::weak_ptr<Runtime> running;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Runtime> runtime = running.lock();
  if (runtime == nullptr) {
    runtime = std::make_shared<Runtime>();
    running = runtime;
  }
  return runtime;
}

}  // namespace gtopk::torch_backend
