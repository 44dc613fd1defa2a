// Sparse, wire: `raw`: `raw`, which sends indices and values as in memory. Selection and merge
// write directly into the message, so sending copies nothing.
#pragma once

#include "src/gtopk/wire/codec.hpp"

namespace gtopk::sparse {

/// The row of `raw`.
extern const CodecRow kRaw;

}  // namespace gtopk::sparse
