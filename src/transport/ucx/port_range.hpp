// UCX transport: ranges of TCP ports as users write them.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace gtopk::transport {

struct PortRange {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
};

/// Parses "40000-40015" or a single port. Returns nullopt unless these are ports from 1 to 65535 in
/// ascending order.
[[nodiscard]] inline std::optional<PortRange> port_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  const auto port = [](std::string_view digits) -> std::uint32_t {
    std::uint16_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return error == std::errc{} && end == digits.data() + digits.size() ? number : 0;
  };
  const std::uint32_t first = port(text.substr(0, dash));
  const std::uint32_t last = dash == std::string_view::npos ? first : port(text.substr(dash + 1));
  return first == 0 || last < first ? std::nullopt : std::optional(PortRange{first, last});
}

}  // namespace gtopk::transport
