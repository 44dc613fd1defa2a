#include "src/gpu/launcher.hpp"

#include <pthread.h>

#include <utility>

namespace gtopk::gpu {

namespace {

/// Memory that the device may still write to, whatever becomes of it: kept until the process ends.
void keep_for_good(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto* const kept = std::make_unique<std::vector<std::shared_ptr<void>>>().release();
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

}  // namespace

struct Launcher::Running {
  Launcher& launcher;
  std::function<void(std::exception_ptr)> done;
  std::shared_ptr<void> memory;
};

Launcher::Launcher(const Driver& driver, Driver::Stream stream, std::string device,
                   std::function<void()> make_current)
    : driver_(driver),
      stream_(stream),
      device_(std::move(device)),
      make_current_(std::move(make_current)),
      thread_([this] { loop(); }) {
  pthread_setname_np(thread_.native_handle(), "gtopk-launcher");
}

Launcher::~Launcher() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Launcher::run(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

std::optional<Launcher::Job> Launcher::next() {
  for (;;) {
    std::vector<std::shared_ptr<void>> let_go;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !jobs_.empty() || !let_go_.empty() || stops_; });
      let_go.swap(let_go_);
      if (!jobs_.empty()) {
        Job job = std::move(jobs_.front());
        jobs_.pop_front();
        ++on_device_;
        return job;
      }
      if (!let_go.empty()) {
        continue;
      }
      if (on_device_ == 0) {
        return std::nullopt;
      }
    }
    // Nothing is called back once the context has an error. What it may still use is never let go.
    if (driver_.synchronize_stream(stream_) != 0) {
      return std::nullopt;
    }
  }
}

void Launcher::loop() {
  bool is_current = false;
  while (std::optional<Job> job = next()) {
    if (!is_current) {
      try {
        make_current_();
        is_current = true;
      } catch (...) {
        job->prepare = [error = std::current_exception()] { std::rethrow_exception(error); };
      }
    }
    launch(std::move(*job));
  }
}

void Launcher::launch(Job job) {
  auto running = std::make_unique<Running>(*this, std::move(job.done), std::move(job.memory));
  bool enqueues = false;
  try {
    if (job.prepare) {
      job.prepare();
    }
    enqueues = true;
    job.launch(stream_);
    const auto over = [](void* argument) {
      const std::unique_ptr<Running> ended(static_cast<Running*>(argument));
      ended->launcher.end(*ended);
    };
    driver_.check(driver_.launch_host_function(stream_, over, running.get()), "call back");
    static_cast<void>(running.release());
  } catch (...) {
    running->done(std::current_exception());
    if (enqueues) {
      keep_for_good(std::move(running->memory));  // part of the work may be enqueued
    }
    const std::lock_guard lock(mutex_);
    --on_device_;
  }
}

void Launcher::end(Running& running) noexcept {
  running.done(nullptr);
  running.done = nullptr;
  // Notified under the mutex: as soon as it is free, the launcher may be gone.
  const std::lock_guard lock(mutex_);
  --on_device_;
  let_go_.push_back(std::move(running.memory));
  changed_.notify_one();
}

}  // namespace gtopk::gpu
