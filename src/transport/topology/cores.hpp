// Topology: sets of cores, with the kernel's numbers, and their notation. It does not depend on the
// machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gtopk::topology {

/// Core numbers, ascending and without duplicates.
using Cores = std::vector<std::uint32_t>;

[[nodiscard]] Cores common(const Cores& a, const Cores& b);
/// Whether all of `some` are among `all`.
[[nodiscard]] bool includes(const Cores& all, const Cores& some);

/// Cores as text: "0-3,8", or "none".
[[nodiscard]] std::string to_text(const Cores& cores);

/// Parses "0-3,8". Throws Error{kInvalidArgument} for anything else, and beyond core 65,535.
[[nodiscard]] Cores cores_from(std::string_view text);

}  // namespace gtopk::topology
