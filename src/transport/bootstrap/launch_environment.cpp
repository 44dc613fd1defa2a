#include "gtopk/launch.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "gtopk/error.hpp"
#include "src/transport/base/tag.hpp"

namespace gtopk {
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

std::uint32_t required_number(const char* name, std::uint32_t least, std::uint32_t most) {
  const std::string_view text = required(name);
  std::uint32_t value = 0;
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
  environment.world_size = required_number("WORLD_SIZE", 1, transport::kMaxRanks);
  environment.rank = required_number("RANK", 0, environment.world_size - 1);
  environment.host = required("MASTER_ADDR");
  environment.port = static_cast<std::uint16_t>(required_number("MASTER_PORT", 1, 65535));
  return environment;
}

}  // namespace gtopk
