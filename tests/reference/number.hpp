// Reference: elements of the four floating types as bytes, and their conversions, written for the
// eye and not for speed. It shares no code with src/: what it says is checked against the IEEE
// formats, not against the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gtopk/types.hpp"

namespace gtopk::reference {

using Bytes = std::vector<std::byte>;

/// `elements` zeros of `type`.
[[nodiscard]] Bytes zeros(DataType type, std::uint64_t elements);

/// Element `index`; exact, as each of the four types fits a double.
[[nodiscard]] double load(DataType type, const Bytes& bytes, std::uint64_t index);

/// Rounds to nearest, ties to even; what is too large becomes infinite. A NaN becomes the quiet NaN
/// without sign and payload.
void store(DataType type, Bytes& bytes, std::uint64_t index, double value);

/// `value` as it comes back from store: one rounding to `type`.
[[nodiscard]] double rounded(DataType type, double value);

/// Distance from 1 to the next larger number: 2^-23, 2^-52, 2^-7, 2^-10.
[[nodiscard]] double epsilon(DataType type);
/// Smallest positive number, a subnormal.
[[nodiscard]] double smallest(DataType type);
/// Largest finite number.
[[nodiscard]] double largest(DataType type);

/// Empty when the two are equal bit for bit, else the first place where they differ, for a test's
/// message.
[[nodiscard]] std::string difference(DataType type, const Bytes& expected, const Bytes& seen);

}  // namespace gtopk::reference
