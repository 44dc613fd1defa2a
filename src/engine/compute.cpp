#include "src/engine/compute.hpp"

#include <pthread.h>

#include <utility>

namespace gtopk::engine {

ComputeThread::ComputeThread(const char* name) : thread_([this] { loop(); }) {
  pthread_setname_np(thread_.native_handle(), name);
}

ComputeThread::~ComputeThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void ComputeThread::run(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void ComputeThread::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      return;
    }
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job.work();
    job.done();
    job = {};
    lock.lock();
  }
}

}  // namespace gtopk::engine
