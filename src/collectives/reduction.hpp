// Collectives: elementwise reduction of two vectors, for every element type. Half types add in
// float32 and round once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/types.hpp"

namespace gtopk::collectives {

/// Throws Error{kInvalidArgument} for an operation that the type does not support (bitwise on
/// floats and complex numbers, MIN and MAX of complex numbers, AVG of bool, PREMUL_SUM of
/// integers), and for a factor other than 1 with anything but PREMUL_SUM.
void check_reduction(DataType type, ReduceOp op, double factor = 1);

/// into[i] = left[i] (op) right[i]; `into` may be either. AVG only adds: divide once, at the end.
/// PREMUL_SUM only adds: multiply each rank's input once, before.
void reduce(void* into, const void* left, const void* right, std::size_t elements, DataType type,
            ReduceOp op);

/// data[i] /= divisor, rounded once; integers towards minus infinity.
void divide(void* data, std::size_t elements, DataType type, std::uint32_t divisor);

/// data[i] *= factor, which is rounded to the accumulation type; the product is rounded once.
/// Floating and complex types.
void multiply(void* data, std::size_t elements, DataType type, double factor);

}  // namespace gtopk::collectives
