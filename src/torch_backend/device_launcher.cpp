#include "src/torch_backend/device_launcher.hpp"

#include <c10/core/StreamGuard.h>
#include <pthread.h>

#include <map>
#include <thread>
#include <utility>

#include "src/torch_backend/device_lanes.hpp"

namespace gtopk::torch_backend {

struct Launcher::Running {
  Launcher& launcher;
  std::function<void(std::exception_ptr)> done;
  std::shared_ptr<void> memory;
};

Launcher& Launcher::of(c10::Device device) {
  static std::mutex mutex;
  static auto& all =
      *std::make_unique<std::map<c10::DeviceIndex, std::unique_ptr<Launcher>>>().release();
  const std::lock_guard lock(mutex);
  std::unique_ptr<Launcher>& launcher = all[device.index()];
  if (!launcher) {
    launcher = std::make_unique<Launcher>(device);
  }
  return *launcher;
}

Launcher::Launcher(c10::Device device)
    : device_(device),
      guard_(device.type()),
      driver_(DeviceDriver::get()),
      stream_(Lanes::of(device).launching()) {
  std::thread thread([this] { loop(); });
  pthread_setname_np(thread.native_handle(), "gtopk-launcher");
  thread.detach();
}

void Launcher::run(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void Launcher::loop() {
  for (;;) {
    std::vector<std::shared_ptr<void>> let_go;
    std::optional<Job> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !jobs_.empty() || !let_go_.empty(); });
      let_go.swap(let_go_);
      if (!jobs_.empty()) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
    }
    if (job) {
      launch(std::move(*job));
    }
  }
}

void Launcher::launch(Job job) {
  auto running = std::make_unique<Running>(*this, std::move(job.done), std::move(job.memory));
  try {
    const c10::StreamGuard now_current(stream_);
    job.launch(stream_);
    const auto over = [](void* argument) {
      const std::unique_ptr<Running> ended(static_cast<Running*>(argument));
      ended->launcher.end(*ended);
    };
    const DeviceDriver::Result result =
        driver_.launch_host_function(guard_.getStreamNativeHandle(stream_), over, running.get());
    TORCH_CHECK_WITH(DistBackendError, result == 0, "gtopk: the driver of ", device_,
                     " cannot call back: ", driver_.name_of(result), " (", result, ")");
    static_cast<void>(running.release());
  } catch (...) {
    running->done(std::current_exception());
    // What was enqueued before it failed may still write to the memory: that is never let go.
    static_cast<void>(running.release());
  }
}

void Launcher::end(Running& running) noexcept {
  running.done(nullptr);
  running.done = nullptr;
  {
    const std::lock_guard lock(mutex_);
    let_go_.push_back(std::move(running.memory));
  }
  changed_.notify_one();
}

}  // namespace gtopk::torch_backend
