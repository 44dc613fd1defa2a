#include "src/transport/ucx/host_identity.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

namespace gtopk::transport {
namespace {

std::uint64_t namespace_of_this_thread(const char* kind) {
  struct stat entry {};
  return stat(fmt::format("/proc/thread-self/ns/{}", kind).c_str(), &entry) == 0 ? entry.st_ino : 0;
}

/// Whether /proc belongs to this process namespace; in a container it may not.
bool proc_is_ours() {
  std::array<char, 32> name{};
  const ssize_t length = readlink("/proc/self", name.data(), name.size());
  return length > 0 &&
         std::string(name.data(), static_cast<std::size_t>(length)) == std::to_string(getpid());
}

/// Reads a field of a file like /proc/PID/stat, "pid (name) state ppid …". Fields are counted from
/// 1 after the name, which may contain anything.
std::optional<std::uint64_t> field_of(const std::filesystem::path& path, int field) {
  std::ifstream file(path);
  std::string line;
  // If the process ends meanwhile, reading fails; a plain iterator would then throw.
  std::getline(file, line, '\0');
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  constexpr int kFirst = 3;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int at = kFirst; at < field; ++at) {
    fields >> skipped;
  }
  std::uint64_t value = 0;
  fields >> value;
  return value;
}

}  // namespace

HostIdentity host_identity_of_this_process() {
  HostIdentity place;
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
  constexpr int kStart = 22;
  return field_of(fmt::format("/proc/{}/stat", process), kStart).value_or(0);
}

bool is_exiting(pid_t process) {
  constexpr int kFlags = 9;
  constexpr std::uint64_t kExiting = 4;  // PF_EXITING in the kernel's sched.h
  std::error_code error;
  bool exiting = false;
  for (const auto& thread :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process), error)) {
    const auto flags = field_of(thread.path() / "stat", kFlags);
    if (flags && (*flags & kExiting) == 0) {
      return false;
    }
    exiting = exiting || flags;
  }
  return exiting;
}

}  // namespace gtopk::transport
