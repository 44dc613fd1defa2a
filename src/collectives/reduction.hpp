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

/// Computes into[i] = left[i] (op) right[i]; `into` may be either. AVG only adds, so divide once at
/// the end. PREMUL_SUM only adds, so multiply each rank's input once before.
void reduce(void* into, const void* left, const void* right, std::size_t elements, DataType type,
            ReduceOp op);

/// Computes data[i] /= divisor, rounded once; integers are rounded towards minus infinity.
void divide(void* data, std::size_t elements, DataType type, std::uint32_t divisor);

/// Computes data[i] *= factor, for floating and complex types. The factor is rounded to the
/// accumulation type; the product is rounded once.
void multiply(void* data, std::size_t elements, DataType type, double factor);

}  // namespace gtopk::collectives
