// Sparse, wire: codecs whose messages have their indices coded (rice.hpp) and their values in
// one of several formats.
#pragma once

#include "src/gtopk/wire/codec.hpp"

namespace gtopk::sparse {

/// Values as they are.
extern const CodecRow kLossless;
/// Values rounded to bfloat16; if one is too large it overflows, and the step did not happen.
extern const CodecRow kBf16;
/// Values rounded to float16; too large ones saturate, and the rest of them is lost.
extern const CodecRow kFp16;
/// Values as integers of -127 to 127 times a power of two for each block of 256 entries.
extern const CodecRow kInt8;
/// Values as one of sixteen levels of each block of 64 entries.
extern const CodecRow k4Bit;
/// Values as a sign and one of two magnitudes of each block of 256 entries.
extern const CodecRow k2Bit;
/// In a list like kSign; in a dense vector a sign times one magnitude of each block of 320
/// elements, or zero.
extern const CodecRow kTernary;
/// Values as a sign times the mean magnitude of each block of 256 entries.
extern const CodecRow kSign;

}  // namespace gtopk::sparse
