#include "torch_backend/completer.hpp"

#include <pthread.h>

#include <exception>
#include <utility>

#include "torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

Completer::Completer() : thread_([this] { loop(); }) {
  pthread_setname_np(thread_.native_handle(), "gtopk-futures");
}

Completer::~Completer() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Completer::run(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void Completer::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    try {
      job();
    } catch (const std::exception& error) {
      LOG(ERROR) << "gtopk: a future's callback threw: " << error.what();
    }
    job = nullptr;
    lock.lock();
  }
}

}  // namespace gtopk::torch_backend
