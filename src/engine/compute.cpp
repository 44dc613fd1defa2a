#include "src/engine/compute.hpp"

#include <utility>

#include "src/transport/base/shortage.hpp"

namespace gtopk::engine {

struct ComputeThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool ending = false;
  bool ended = false;

  void loop();
};

ComputeThread::ComputeThread(const char* name)
    : state_(std::make_shared<State>()),
      thread_(transport::start_thread(name, [state = state_] { state->loop(); })) {}

ComputeThread::~ComputeThread() {
  if (!thread_.joinable()) {
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->ending = true;
  }
  state_->changed.notify_all();
  thread_.join();
}

void ComputeThread::run(Job job) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->jobs.push_back(std::move(job));
  }
  state_->changed.notify_all();
}

void ComputeThread::end_within(std::chrono::nanoseconds at_most) {
  std::deque<Job> dropped;
  std::unique_lock lock(state_->mutex);
  dropped.swap(state_->jobs);
  state_->ending = true;
  state_->changed.notify_all();
  if (!state_->changed.wait_for(lock, at_most, [this] { return state_->ended; })) {
    thread_.detach();
  }
}

void ComputeThread::State::loop() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return ending || !jobs.empty(); });
    if (jobs.empty()) {
      ended = true;
      changed.notify_all();
      return;
    }
    Job job = std::move(jobs.front());
    jobs.pop_front();
    lock.unlock();
    job.work();
    job.done();
    job = {};
    lock.lock();
  }
}

}  // namespace gtopk::engine
