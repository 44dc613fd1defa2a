#include "src/transport/base/shortage.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <optional>
#include <system_error>
#include <utility>

#include "gtopk/error.hpp"
#include "src/transport/base/log.hpp"

namespace gtopk::transport {
namespace {

constexpr rlim_t kMostOpenFiles = rlim_t{1} << 20U;
/// The number of descriptors needed to open a connection, for any_shortage().
constexpr std::size_t kFewDescriptors = 4;
constexpr std::size_t kSomeMemory = std::size_t{16} << 20U;

std::string error_text(int code) { return std::generic_category().message(code); }

std::string soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) {
    return "unknown";
  }
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

/// Returns how many more descriptors this process may have, at most `count`. It opens none, because
/// another thread may need the last one: without it, UCX's thread cannot accept a connection and
/// closes its port for good. It searches from the limit downwards because the kernel always takes
/// the lowest number.
std::size_t free_descriptors(std::size_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return count;
  }
  std::size_t found = 0;
  for (rlim_t number = std::min<rlim_t>(limit.rlim_cur, INT_MAX); number > 0 && found < count;) {
    --number;
    if (fcntl(static_cast<int>(number), F_GETFD) < 0) {
      ++found;
    }
  }
  return found;
}

/// Returns the errno of opening a file, or 0 if one can be opened.
int errno_of_open() {
  const int descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return errno;
  }
  close(descriptor);
  return 0;
}

std::string describe_thread_limits(int error) {
  return fmt::format(
      "{} (limit of this user's processes and threads {}, ulimit -u; a container may have a limit "
      "of its own, pids.max)",
      error_text(error), soft_limit(RLIMIT_NPROC));
}

std::string thread_shortage() {
  try {
    std::thread([] {}).join();
  } catch (const std::system_error& error) {
    return fmt::format("this process can start no more threads: {}",
                       describe_thread_limits(error.code().value()));
  }
  return {};
}

std::string memory_shortage() {
  void* const memory =
      mmap(nullptr, kSomeMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return fmt::format(
        "this process cannot get more memory: {} (limit of its address space: {} bytes, "
        "ulimit -v)",
        error_text(errno), soft_limit(RLIMIT_AS));
  }
  munmap(memory, kSomeMemory);
  return {};
}

}  // namespace

bool raise_open_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return false;
  }
  const rlim_t before = limit.rlim_cur;
  const rlim_t wanted = std::min(limit.rlim_max, kMostOpenFiles);
  if (before >= wanted) {
    return false;
  }
  limit.rlim_cur = wanted;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return false;
  }
  log().info("the limit of open files (ulimit -n) was {}, and is now {}", before, wanted);
  return true;
}

std::string descriptor_shortage(std::size_t count) {
  const std::size_t left = free_descriptors(count);
  if (left >= count) {
    return errno_of_open() == ENFILE
               ? "this machine has no file descriptors left (sysctl fs.file-max)"
               : std::string();
  }
  return fmt::format(
      "this process has {} (limit {}, ulimit -n)",
      left == 0 ? std::string("no file descriptors left")
                : fmt::format("too few file descriptors left, {} of the {} needed", left, count),
      soft_limit(RLIMIT_NOFILE));
}

// Check memory before threads, because without memory no thread starts either.
std::string any_shortage() {
  for (std::string (*const find)() :
       {+[] { return descriptor_shortage(kFewDescriptors); }, &memory_shortage, &thread_shortage}) {
    if (std::string found = find(); !found.empty()) {
      return found;
    }
  }
  return {};
}

std::thread start_thread(const char* name, std::function<void()> run) {
  std::optional<std::thread> thread;
  try {
    thread.emplace(std::move(run));
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::kTransport,
                fmt::format("this process cannot start the thread {}: {}", name,
                            describe_thread_limits(error.code().value())));
  }
  pthread_setname_np(thread->native_handle(), name);
  return *std::move(thread);
}

}  // namespace gtopk::transport
