// Tests of the sparse rooms: how often this program has allocated. Linking the .cpp beside this
// file replaces the global operator new.
#pragma once

#include <cstddef>

namespace gtopk::sparse::testing {

[[nodiscard]] std::size_t allocations();

}  // namespace gtopk::sparse::testing
