#include "src/gpu/launcher.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <utility>

namespace gtopk::gpu {

namespace {

/// Keeps memory that the device may still write to until the process ends.
void keep_for_good(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto* const kept = std::make_unique<std::vector<std::shared_ptr<void>>>().release();
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

}  // namespace

/// Shared by the launcher, the watch, and the driver's callback, one of which reports the end.
/// References that a failed driver holds are leaked.
struct Launcher::Running {
  Running(Launcher* by, Job of) : launcher(by), job(std::move(of)) {}

  std::mutex mutex;
  Launcher* launcher;  ///< null once the end was reported, as the launcher may be gone
  Job job;
  Watch::Number watched = 0;
};

Launcher::Launcher(const Driver& driver, Driver::Stream stream, std::string device,
                   std::function<void()> make_current, Watch& watch)
    : driver_(driver),
      stream_(stream),
      device_(std::move(device)),
      make_current_(std::move(make_current)),
      watch_(watch),
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
        return job;
      }
      if (!let_go.empty()) {
        continue;
      }
      if (on_device_.empty()) {
        return std::nullopt;
      }
    }
    // The driver makes no callbacks once the context has an error.
    if (const Driver::Result result = driver_.synchronize_stream(stream_); result != 0) {
      end_all(std::make_exception_ptr(Failure(
          fmt::format("{} has failed: {} ({})", device_, driver_.name_of(result), result))));
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
  bool enqueues = false;
  try {
    if (job.prepare) {
      job.prepare();
    }
    enqueues = true;
    job.launch(stream_);
  } catch (...) {
    job.done(std::current_exception());
    if (enqueues) {
      keep_for_good(std::move(job.memory));  // part of the work may be enqueued
    }
    return;
  }
  const auto running = std::make_shared<Running>(this, std::move(job));
  {
    const std::lock_guard not_yet(running->mutex);  // the watch may already know
    const std::lock_guard lock(mutex_);
    on_device_.push_back(running);
    running->watched = watch_.expect([running](const std::string& why) {
      end(*running, std::make_exception_ptr(Failure(why)));
    });
  }
  auto held = std::make_unique<std::shared_ptr<Running>>(running);
  const auto over = [](void* argument) {
    const std::unique_ptr<std::shared_ptr<Running>> ended(
        static_cast<std::shared_ptr<Running>*>(argument));
    end(**ended, nullptr);
  };
  try {
    driver_.check(driver_.launch_host_function(stream_, over, held.get()), "call back");
    static_cast<void>(held.release());
  } catch (...) {
    end(*running, std::current_exception());
  }
}

void Launcher::end(Running& running, const std::exception_ptr& error) noexcept {
  const std::lock_guard ending(running.mutex);
  Launcher* const launcher = std::exchange(running.launcher, nullptr);
  if (launcher == nullptr) {
    return;
  }
  running.job.done(error);
  running.job.done = nullptr;
  launcher->watch_.forget(running.watched);
  // Notify while holding the mutex, because the launcher may be destroyed as soon as it is free.
  const std::lock_guard lock(launcher->mutex_);
  std::erase_if(launcher->on_device_, [&](const auto& each) { return each.get() == &running; });
  if (error) {
    keep_for_good(std::move(running.job.memory));
  } else {
    launcher->let_go_.push_back(std::move(running.job.memory));
  }
  launcher->changed_.notify_one();
}

void Launcher::end_all(const std::exception_ptr& error) noexcept {
  std::vector<std::shared_ptr<Running>> all;
  {
    const std::lock_guard lock(mutex_);
    all = on_device_;
  }
  for (const auto& running : all) {
    end(*running, error);
  }
}

}  // namespace gtopk::gpu
