#include "src/transport/ucx/place.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace gtopk::transport {
namespace {

std::uint64_t namespace_of_this_thread(const char* kind) {
  struct stat entry {};
  return stat(fmt::format("/proc/thread-self/ns/{}", kind).c_str(), &entry) == 0 ? entry.st_ino : 0;
}

/// A container may see the /proc of another process namespace.
bool proc_is_ours() {
  std::array<char, 32> name{};
  const ssize_t length = readlink("/proc/self", name.data(), name.size());
  return length > 0 &&
         std::string(name.data(), static_cast<std::size_t>(length)) == std::to_string(getpid());
}

}  // namespace

Place place_of_this_process() {
  Place place;
  if (!proc_is_ours()) {
    return place;
  }
  std::ifstream("/proc/sys/kernel/random/boot_id") >> place.boot;
  place.process_namespace = namespace_of_this_thread("pid");
  place.network_namespace = namespace_of_this_thread("net");
  place.ipc_namespace = namespace_of_this_thread("ipc");
  place.started = start_of(getpid());
  return place;
}

std::uint64_t start_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string line(std::istreambuf_iterator<char>(file), {});
  // "pid (name) state ppid …": the start time is the 22nd field, and a name may contain anything.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) {
    return 0;
  }
  constexpr int kFieldsBetween = 19;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < kFieldsBetween; ++i) {
    fields >> skipped;
  }
  std::uint64_t start = 0;
  fields >> start;
  return start;
}

}  // namespace gtopk::transport
