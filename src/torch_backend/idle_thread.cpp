#include "src/torch_backend/idle_thread.hpp"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

namespace gtopk::torch_backend {

IdleThread::IdleThread() : id_(gettid()) { pthread_getcpuclockid(pthread_self(), &clock_); }

std::int64_t IdleThread::cpu_nanoseconds() const {
  timespec used{};
  clock_gettime(clock_, &used);
  return static_cast<std::int64_t>(used.tv_sec) * 1'000'000'000 + used.tv_nsec;
}

bool IdleThread::sleeps() const {
  std::ifstream file("/proc/self/task/" + std::to_string(id_) + "/stat");
  std::string stat;
  std::getline(file, stat, '\0');
  const std::size_t name_end = stat.rfind(')');  // the state follows the name: "12 (name) S 1 ..."
  return name_end != std::string::npos && stat.compare(name_end, 4, ") S ") == 0;
}

bool IdleThread::still_asleep() const { return cpu_nanoseconds() == used_ && sleeps(); }

int IdleThread::look() {
  const bool slept = still_asleep();
  used_ = cpu_nanoseconds();
  looks_ = slept ? looks_ + 1 : 0;
  return looks_;
}

}  // namespace gtopk::torch_backend
