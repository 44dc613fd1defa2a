// Sparse, wire: codecs whose messages have their indices coded (rice.hpp) and their values in
// one of several formats.
#pragma once

#include "src/gtopk/wire/codec.hpp"

namespace gtopk::sparse {

/// Stores values as they are.
extern const CodecRow kLossless;
/// Stores values rounded to bfloat16. A value that is too large overflows, and the step does not
/// happen.
extern const CodecRow kBf16;
/// Stores values rounded to float16. Values that are too large saturate, and the excess is lost to
/// rounding.
extern const CodecRow kFp16;
/// Stores values as integers from -127 to 127 times a power of two for each block of 256 entries.
extern const CodecRow kInt8;
/// Stores values as one of sixteen levels of each block of 64 entries.
extern const CodecRow k4Bit;
/// Stores values as a sign and one of two magnitudes of each block of 256 entries.
extern const CodecRow k2Bit;
/// In a list, stores values like kSign; in a dense vector, as a sign times one magnitude of each
/// block of 320 elements, or zero.
extern const CodecRow kTernary;
/// Stores values as a sign times the mean magnitude of each block of 256 entries.
extern const CodecRow kSign;

}  // namespace gtopk::sparse
