#include "src/torch_backend/completer.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "src/torch_backend/forks.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {
namespace {

using Job = std::function<void()>;

/// How long the destructor waits for callbacks that are still running.
constexpr std::chrono::seconds kLastCallbacks(3);
/// The number of idle threads to keep: one to take a job, and one to watch meanwhile.
constexpr std::size_t kWatchers = 2;

void run_logged(const Job& job) {
  try {
    job();
  } catch (const std::exception& error) {
    LOG(ERROR) << "gtopk: a future's callback threw: " << error.what();
  }
}

/// Detached threads that ended their own completer in a callback that left the last group, and have
/// yet to return from it through Python.
struct Stragglers {
  std::mutex mutex;
  std::condition_variable gone;
  std::size_t count = 0;
  std::atomic<int> counted_after = 0;  // number of forks
};

/// The stragglers are never destroyed, because threads may end after the process's statics.
Stragglers& stragglers() {
  static Stragglers* const all = std::make_unique<Stragglers>().release();
  return *all;
}

/// Leaks jobs that will not run, because they may hold Python objects when Python is gone.
template <class T>
void leak(T&& left_over) {
  static_cast<void>(std::make_unique<T>(std::forward<T>(left_over)).release());
}

}  // namespace

struct Completer::ThreadPool : std::enable_shared_from_this<ThreadPool> {
  struct Member {
    std::thread thread;
    bool left = false;
    bool straggles = false;
  };

  std::mutex mutex;
  std::condition_variable changed;  // signalled for jobs and ending
  std::condition_variable left;     // signalled when a thread has left
  std::deque<Job> jobs;
  std::list<Member> members;
  std::size_t watching = 0;  // threads that wait for a job or are about to
  bool ending = false;
  bool abandoned = false;  // whether running jobs are not waited for

  /// Adds a thread that watches the queue. Must be called with the mutex held.
  void add_thread();
  void work(Member& me);
  /// Whether all threads of the pool except the caller's have left. Must be called with the mutex
  /// held.
  [[nodiscard]] bool all_others_left() const;

  /// The pool to which the calling thread belongs.
  static const ThreadPool*& of_this_thread() {
    thread_local const ThreadPool* pool = nullptr;
    return pool;
  }
};

void Completer::ThreadPool::add_thread() {
  members.remove_if([](Member& member) {
    if (member.left && member.thread.joinable()) {
      member.thread.join();
    }
    return member.left;
  });
  Member& member = members.emplace_back();
  try {
    member.thread = std::thread([pool = shared_from_this(), &member] { pool->work(member); });
    pthread_setname_np(member.thread.native_handle(), "gtopk-futures");
    ++watching;
  } catch (const std::system_error& error) {
    members.pop_back();
    LOG(ERROR) << "gtopk: could not start a thread for futures' callbacks: " << error.what()
               << "; a callback that waits for another future may hang";
  }
}

void Completer::ThreadPool::work(Member& me) {
  of_this_thread() = this;
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return ending || !jobs.empty(); });
    --watching;
    if (jobs.empty()) {
      break;
    }
    Job job = std::move(jobs.front());
    jobs.pop_front();
    if (watching == 0) {
      add_thread();
    }
    lock.unlock();
    run_logged(job);
    lock.lock();
    if (abandoned) {
      leak(std::move(job));
      break;
    }
    lock.unlock();
    job = nullptr;
    lock.lock();
    if (watching >= kWatchers) {
      break;
    }
    ++watching;
  }
  me.left = true;
  left.notify_all();
  if (me.straggles) {
    const std::lock_guard counting(stragglers().mutex);
    --stragglers().count;
    stragglers().gone.notify_all();
  }
}

bool Completer::ThreadPool::all_others_left() const {
  const bool one_of_them = of_this_thread() == this;
  std::size_t there = 0;
  for (const Member& member : members) {
    there += member.left ? 0 : 1;
  }
  return there == (one_of_them ? 1 : 0);
}

Completer::Completer() : pool_(std::make_shared<ThreadPool>()) {
  const std::lock_guard lock(pool_->mutex);
  pool_->add_thread();
}

Completer::~Completer() {
  ThreadPool& pool = *pool_;
  std::vector<std::thread> ended;
  std::unique_lock lock(pool.mutex);
  pool.ending = true;
  pool.changed.notify_all();
  if (!pool.left.wait_for(lock, kLastCallbacks, [&] { return pool.all_others_left(); })) {
    pool.abandoned = true;
    leak(std::move(pool.jobs));
    LOG(WARNING) << "gtopk: a future's callback is still running " << kLastCallbacks.count()
                 << " s after the last process group was left; gtopk no longer waits for it";
  }
  for (ThreadPool::Member& member : pool.members) {
    if (member.left) {
      ended.push_back(std::move(member.thread));
    } else {
      if (!pool.abandoned) {
        const std::lock_guard counting(stragglers().mutex);
        member.straggles = true;
        ++stragglers().count;
        stragglers().counted_after = forks();
      }
      member.thread.detach();
    }
  }
  lock.unlock();
  for (std::thread& thread : ended) {
    thread.join();
  }
}

void Completer::wait_for_stragglers() {
  Stragglers& all = stragglers();
  if (all.counted_after != forks()) {
    return;  // the threads, and perhaps the locked mutex, belong to the parent
  }
  std::unique_lock lock(all.mutex);
  all.gone.wait_for(lock, kLastCallbacks, [&] { return all.count == 0; });
}

void Completer::run(Job job) {
  {
    const std::lock_guard lock(pool_->mutex);
    pool_->jobs.push_back(std::move(job));
  }
  pool_->changed.notify_one();
}

}  // namespace gtopk::torch_backend
