#include "tools/programs/info/gpu_test.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "gtopk/types.hpp"
#include "src/cuda/load.hpp"
#include "src/gpu/self_test.hpp"
#include "tools/programs/gpu.hpp"
#include "tools/programs/program.hpp"

namespace gtopk::programs::info {
namespace {

using Clock = std::chrono::steady_clock;

/// Prints text. The parent prints each complete line; an incomplete line names the running test.
void print(const std::string& text) {
  static_cast<void>(std::fputs(text.c_str(), stdout));
  static_cast<void>(std::fflush(stdout));
}

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

gpu::Driver::Stream new_stream(const gpu::Driver& driver) {
  gpu::Driver::Stream stream = nullptr;
  driver.check(driver.create_stream(&stream, 0), "make a stream");
  return stream;
}

bool test_waits(const gpu::Driver& driver) {
  print("  stream waits: ");
  void* memory = nullptr;
  driver.check(driver.allocate_pinned(&memory, sizeof(std::uint32_t), 0), "give pinned memory");
  auto& flag = *new (memory) std::atomic<std::uint32_t>(0);  // lives as long as the process
  try {
    const auto start = Clock::now();
    gpu::test_waits(driver, new_stream(driver), flag, 1, gpu::kWaitTrips);
    print(fmt::format("{} round trips, {:.1f} ms\n", gpu::kWaitTrips, milliseconds_since(start)));
    return true;
  } catch (const gpu::Failure& failure) {
    print(fmt::format("{}; wait() would block the host\n", failure.what()));
    return false;
  }
}

bool test_type(const gpu::Driver& driver, const cuda::Calls& kernels, DataType dtype) {
  print(fmt::format("  {}: ", to_string(dtype)));
  if (const int error = kernels.load(dtype); error != 0) {
    print(fmt::format("its kernels cannot be loaded: {} ({})\n", kernels.error_name(error), error));
    return false;
  }
  const auto start = Clock::now();
  const gpu::SelfTestReport report =
      gpu::test_kernels(driver, kernels, dtype, new_stream(driver), gpu::SelfTest::kFull);
  const double took = milliseconds_since(start);
  if (report.failures.empty()) {
    print(fmt::format("{} calls, all bits as the CPU's, {:.0f} ms\n", report.calls, took));
    return true;
  }
  print(fmt::format("{} calls, {} of them not as on the CPU, {:.0f} ms\n", report.calls,
                    report.failures.size(), took));
  for (const std::string& each : report.failures) {
    print(fmt::format("    {}\n", each));
  }
  return false;
}

int test_here() {
  const gpu::Driver& driver = gpu::Driver::get();
  driver.check(driver.init(0), "start");
  int count = 0;
  driver.check(driver.device_count(&count), "count the GPUs");
  if (count < 1) {
    throw std::runtime_error("the driver sees no GPU");
  }
  const cuda::Calls* const kernels = cuda::load_calls(kernels_folder());
  if (kernels == nullptr) {
    throw std::runtime_error(
        "there are no kernels to test: name their library in GTOPK_CUDA_KERNELS");
  }
  bool passed = true;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    print(fmt::format("GPU {}, {}\n", ordinal, driver.described(ordinal)));
    driver.make_current(ordinal);
    passed = test_waits(driver) && passed;
    for (const DataType dtype :
         {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16, DataType::kFloat16}) {
      passed = test_type(driver, *kernels, dtype) && passed;
    }
  }
  return passed ? kFine : kFailed;
}

[[noreturn]] void throw_system_error(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// Says how the child ended, or that it was killed because it was silent; empty if it returned an
/// exit code.
std::string end_of(pid_t child, bool in_time, std::chrono::nanoseconds limit, int& code) {
  if (!in_time) {
    kill(child, SIGKILL);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  code = WIFEXITED(status) ? WEXITSTATUS(status) : kFailed;
  if (!in_time) {
    return fmt::format("not done within {:g} s, and was killed",
                       std::chrono::duration<double>(limit).count());
  }
  return WIFSIGNALED(status) ? fmt::format("the process was ended by signal {} ({})",
                                           WTERMSIG(status), strsignal(WTERMSIG(status)))
                             : std::string();
}

/// Prints lines that arrive, and keeps an incomplete one in `left`. Returns false if nothing
/// arrives within `limit`.
bool pass_on(int from, std::chrono::nanoseconds limit, std::string& left) {
  const auto all = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  const int wait =
      static_cast<int>(std::clamp<std::int64_t>(all, 1, std::numeric_limits<int>::max()));
  std::array<char, 4096> bytes{};
  for (;;) {
    pollfd readable{from, POLLIN, 0};
    const int ready = poll(&readable, 1, wait);
    if (ready == 0) {
      return false;
    }
    const ssize_t count = ready < 0 ? ready : read(from, bytes.data(), bytes.size());
    if (count == 0) {
      return true;
    }
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      throw_system_error("reading from the child process");
    }
    left.append(bytes.data(), static_cast<std::size_t>(count));
    for (std::size_t end = 0; (end = left.find('\n')) != std::string::npos;) {
      static_cast<void>(print_line(std::string_view(left).substr(0, end)));
      left.erase(0, end + 1);
    }
  }
}

}  // namespace

int test_gpus(std::chrono::nanoseconds limit) {
  std::array<int, 2> pipe_ends{};
  if (pipe(pipe_ends.data()) != 0) {
    throw_system_error("a pipe");
  }
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    throw_system_error("a child process");
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(pipe_ends[1], STDOUT_FILENO) < 0) {
      _exit(kFailed);
    }
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    _exit(test_here());  // the driver is not shut down; errors go to stderr as usual
  }
  close(pipe_ends[1]);
  std::string left;
  const bool in_time = pass_on(pipe_ends[0], limit, left);
  close(pipe_ends[0]);
  int code = kFailed;
  const std::string why = end_of(child, in_time, limit, code);
  if (!why.empty()) {
    static_cast<void>(print_line(left + why));
  }
  return code;
}

}  // namespace gtopk::programs::info
