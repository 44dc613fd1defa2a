#include "src/torch_backend/forks.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "gtopk/error.hpp"

namespace gtopk::torch_backend {
namespace {

std::mutex shared_mutex;
std::atomic<int> count{0};

[[maybe_unused]] const int kRegistered =
    pthread_atfork([] { shared_mutex.lock(); }, [] { shared_mutex.unlock(); },
                   [] {
                     ++count;
                     shared_mutex.unlock();
                   });

}  // namespace

int forks() { return count.load(std::memory_order_relaxed); }

void check_not_forked_since(int then) {
  if (then == forks()) {
    return;
  }
  throw Error(
      ErrorKind::kInvalidArgument,
      "process " + std::to_string(getpid()) +
          " was forked from a process that has gtopk process groups: a forked child can use "
          "neither its parent's groups nor groups of its own; start it with spawn, or fork "
          "before init_process_group");
}

std::mutex& process_mutex() { return shared_mutex; }

}  // namespace gtopk::torch_backend
