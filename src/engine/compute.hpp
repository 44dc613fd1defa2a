// Engine: long arithmetic off the engine thread, so that messages of other operations keep moving.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace gtopk::engine {

/// Runs a job and then calls `done`, on any thread.
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

/// Runs jobs at once on the caller's thread, for tests that must not depend on timing.
class InlineExecutor final : public Executor {
 public:
  void run(Job job) override {
    job.work();
    job.done();
  }
};

/// Runs jobs in order on its own thread. The destructor finishes all queued jobs.
class ComputeThread final : public Executor {
 public:
  /// Starts the thread. `name`: the thread's name, at most 15 characters.
  explicit ComputeThread(const char* name = "gtopk-compute");
  ComputeThread(const ComputeThread&) = delete;
  ComputeThread& operator=(const ComputeThread&) = delete;
  ComputeThread(ComputeThread&&) = delete;
  ComputeThread& operator=(ComputeThread&&) = delete;
  ~ComputeThread() override;
  void run(Job job) override;
  /// Drops queued jobs, and detaches a running job that does not end within `at_most`.
  void end_within(std::chrono::nanoseconds at_most);

 private:
  struct State;

  std::shared_ptr<State> state_;  ///< shared with the thread, which may outlive this object
  std::thread thread_;
};

}  // namespace gtopk::engine
