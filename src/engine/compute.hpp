// Engine: long arithmetic beside the engine thread, so that messages of other operations keep
// moving meanwhile.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace gtopk::engine {

/// Runs a job and then calls `done`, on whatever thread it likes.
class Executor {
 public:
  struct Job {
    std::function<void()> work;
    std::function<void()> done;
  };

  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  Executor(Executor&&) = delete;
  Executor& operator=(Executor&&) = delete;
  virtual ~Executor() = default;
  virtual void run(Job job) = 0;
};

/// In the caller's thread, at once: for tests that must not depend on timing.
class InlineExecutor final : public Executor {
 public:
  void run(Job job) override {
    job.work();
    job.done();
  }
};

/// One thread of its own, jobs in order. The destructor finishes what was handed in.
class ComputeThread final : public Executor {
 public:
  /// `name`: the thread's, at most 15 letters.
  explicit ComputeThread(const char* name = "gtopk-compute");
  ComputeThread(const ComputeThread&) = delete;
  ComputeThread& operator=(const ComputeThread&) = delete;
  ComputeThread(ComputeThread&&) = delete;
  ComputeThread& operator=(ComputeThread&&) = delete;
  ~ComputeThread() override;
  void run(Job job) override;

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace gtopk::engine
