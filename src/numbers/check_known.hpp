// Numbers: rejects numbers that are not values of an enumeration; a cast can make such numbers.
#pragma once

#include <string_view>

#include <fmt/format.h>

#include "gtopk/error.hpp"

namespace gtopk {

/// Throws Error{kInvalidArgument} for a number that is not one of the enumeration's values.
template <class Enumeration>
void check_known(Enumeration value, std::string_view what) {
  if (to_string(value) == "unknown") {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("there is no {} number {}", what, static_cast<unsigned>(value)));
  }
}

}  // namespace gtopk
