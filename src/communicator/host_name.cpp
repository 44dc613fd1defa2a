#include "src/communicator/host_name.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "gtopk/error.hpp"

namespace gtopk {
namespace {

constexpr const char* kHostVariable = "GTOPK_HOST";

/// Chosen names have a prefix, so they never equal names read from the machine.
std::string chosen(std::string_view name, std::string_view from) {
  if (name.size() > kMostHostBytes) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{}: a host name may have at most {} bytes, seen {}", from,
                            kMostHostBytes, name.size()));
  }
  return fmt::format("name {}", name);
}

}  // namespace

std::string host_name(const transport::PeerInfo& self, const std::string& told) {
  const char* const named = std::getenv(kHostVariable);
  if (named != nullptr && *named != '\0') {
    return chosen(named, kHostVariable);
  }
  if (!told.empty()) {
    return chosen(told, "Meeting::host");
  }
  const transport::HostIdentity& place = self.place;
  if (place.boot.empty() || place.ipc_namespace == 0) {
    return fmt::format("process {:016x}", self.identity);
  }
  return fmt::format("boot {}, IPC namespace {}", place.boot, place.ipc_namespace);
}

}  // namespace gtopk
