// Sparse, residual: the arithmetic sweeps over a stretch of tensor and residual. Their SIMD form is
// chosen at run time. They do not know entries.
#pragma once

#include <cstddef>

#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse {

/// Computes residual <- tensor + residual, tensor <- 0.
template <class T>
void absorb_stretch(T* tensor, Accumulation<T>* residual, std::size_t count);

/// Computes acc <- gradient + residual; `residual` may be null or `acc`. Returns whether all are
/// finite.
template <class T>
[[nodiscard]] bool accumulate_stretch(const T* gradient, const Accumulation<T>* residual,
                                      Accumulation<T>* acc, std::size_t count);

}  // namespace gtopk::sparse
