#include "src/torch_backend/runtime.hpp"

#include <mutex>
#include <string>

#include "gtopk/error.hpp"
#include "src/torch_backend/device_driver.hpp"
#include "src/torch_backend/forks.hpp"

namespace gtopk::torch_backend {

Runtime::Runtime() : process(Process::start()) {
  process->use([](Memory memory) {
    try {
      gpu::Driver::get().make_current(memory.device);
    } catch (const gpu::Failure& failure) {
      throw Error(ErrorKind::kTransport, std::string("on the engine's thread ") + failure.what());
    }
  });
}

std::shared_ptr<Runtime> Runtime::get() {
  static std::weak_ptr<Runtime> running;
  static int started_after = 0;  // number of forks
  for (;;) {
    std::shared_ptr<Runtime> runtime;
    {
      const std::lock_guard lock(process_mutex());
      if (!running.expired()) {
        check_not_forked_since(started_after);
      }
      runtime = running.lock();
      if (runtime == nullptr) {
        runtime = std::make_shared<Runtime>();
        running = runtime;
        started_after = forks();
      }
    }
    if (!runtime->process->spent()) {
      return runtime;
    }
    // Groups that hold the runtime keep it; the next groups may include a peer that it has lost.
    const std::lock_guard lock(process_mutex());
    if (running.lock() == runtime) {
      running.reset();
    }
  }
}

}  // namespace gtopk::torch_backend
