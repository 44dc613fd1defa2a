#include "src/transport/topology/cores.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "gtopk/error.hpp"

namespace gtopk::topology {
namespace {

constexpr std::uint32_t kMostCore = 65535;

std::optional<std::uint32_t> core(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > kMostCore) {
    return {};
  }
  return value;
}

/// Parses "4" or "0-3"; false for anything else.
bool add_range(std::string_view text, std::set<std::uint32_t>& cores) {
  const std::size_t dash = text.find('-');
  const auto first = core(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : core(text.substr(dash + 1));
  if (!first || !last || *first > *last) {
    return false;
  }
  for (std::uint32_t core = *first; core <= *last; ++core) {
    cores.insert(core);
  }
  return true;
}

}  // namespace

Cores common(const Cores& a, const Cores& b) {
  Cores both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

bool includes(const Cores& all, const Cores& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

std::string to_text(const Cores& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) {
      ++last;
    }
    if (!text.empty()) {
      text += ',';
    }
    text += last == i ? fmt::format("{}", cores[i]) : fmt::format("{}-{}", cores[i], cores[last]);
    i = last + 1;
  }
  return text.empty() ? "none" : text;
}

Cores cores_from(std::string_view text) {
  std::set<std::uint32_t> cores;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    if (!add_range(rest.substr(0, comma), cores)) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("'{}' is not a list of cores: expected one like 0-3,8", text));
    }
    if (comma == std::string_view::npos) {
      break;
    }
    rest = rest.substr(comma + 1);
  }
  return {cores.begin(), cores.end()};
}

}  // namespace gtopk::topology
