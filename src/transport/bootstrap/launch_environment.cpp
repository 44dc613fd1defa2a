#include "transport/bootstrap/launch_environment.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "gtopk/error.hpp"
#include "transport/base/tag.hpp"

namespace gtopk::bootstrap {
namespace {

std::string_view required(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    throw Error(
        ErrorKind::kBootstrap,
        fmt::format("{} is not set: start the ranks with torchrun, or set RANK, WORLD_SIZE, "
                    "MASTER_ADDR and MASTER_PORT for each",
                    name));
  }
  return value;
}

int required_number(const char* name, int least, int most) {
  const std::string_view text = required(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw Error(ErrorKind::kBootstrap, fmt::format("{} is '{}': expected a number from {} to {}",
                                                   name, text, least, most));
  }
  return value;
}

}  // namespace

LaunchEnvironment launch_environment() {
  LaunchEnvironment environment;
  environment.world_size = required_number("WORLD_SIZE", 1, static_cast<int>(transport::kMaxRanks));
  environment.rank = required_number("RANK", 0, environment.world_size - 1);
  environment.server.host = required("MASTER_ADDR");
  environment.server.port = static_cast<std::uint16_t>(required_number("MASTER_PORT", 1, 65535));
  return environment;
}

}  // namespace gtopk::bootstrap
