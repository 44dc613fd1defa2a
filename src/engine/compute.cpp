#include "src/engine/compute.hpp"

#include <utility>

#include "src/transport/base/shortage.hpp"

namespace gtopk::engine {

ComputeThread::ComputeThread(const char* name)
    : thread_(transport::start_thread(name, [this] { loop(); })) {}

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
