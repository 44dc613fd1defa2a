#include "src/transport/ucx/posix_space.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace gtopk::transport {
namespace {

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20U;
/// Below this much space, UCX leaves out POSIX shared memory (UCX_POSIX_SHM_MIN_SIZE).
constexpr std::uint64_t kLeast = 16 * kMebibyte;

std::string posix_directory() {
  const char* const user = std::getenv("UCX_POSIX_DIR");
  return user == nullptr ? "/dev/shm" : user;
}

bool names_posix(std::string_view tls) {
  const bool all_but = tls.starts_with('^');
  bool named = false;
  for (std::size_t begin = all_but ? 1 : 0; begin < tls.size();) {
    static constexpr std::array<std::string_view, 5> kNames = {"posix", "sm", "shm", "mm", "all"};
    const std::size_t end = std::min(tls.find(',', begin), tls.size());
    named = named || std::ranges::count(kNames, tls.substr(begin, end - begin)) != 0;
    begin = end + 1;
  }
  return all_but ? !named : named || tls.empty();
}

}  // namespace

std::uint64_t posix_space() {
  struct statvfs system {};
  const bool known = statvfs(posix_directory().c_str(), &system) == 0;
  return known ? system.f_bavail * system.f_frsize : 0;
}

std::string posix_shortage(std::string_view tls) {
  if (!names_posix(tls) || posix_space() >= kLeast) {
    return {};
  }
  return fmt::format(
      "{} has {:.1f} MiB left, and UCX uses POSIX shared memory only if at least {} MiB are free: "
      "delete "
      "what is not needed there, make it larger (docker run --shm-size), or leave posix out of "
      "UCX_TLS (tcp,sysv,self uses System V's)",
      posix_directory(), static_cast<double>(posix_space()) / kMebibyte, kLeast / kMebibyte);
}

}  // namespace gtopk::transport
