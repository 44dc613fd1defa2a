// Sparse, device: acc without a selection. All of acc, or its values at indices that all ranks
// know, goes to pinned memory, and the host sums it over the ranks. Sums of all of acc are
// committed here.
#pragma once

#include <cstdint>
#include <limits>

#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse::device {

/// Writes gradient + residual to `to`.
template <class T>
struct Accumulate {
  using Value = Accumulation<T>;
  struct Shared {};

  Pieces<T> acc;
  /// The destination for acc of the whole vector.
  Value* to;
  /// May be null. If its value is 0, the kernel does nothing.
  const std::uint64_t* only_if = nullptr;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    if (only_if != nullptr && *only_if == 0) {
      return;
    }
    for (std::uint64_t tile = block.number(); tile < acc.tiles; tile += block.count()) {
      const Stretch<T> here = acc.tile(tile);
      block.each([&](unsigned thread) {
        each_loaded(
            thread, here.size, [&](std::size_t i) { return here.acc(i); },
            [&](unsigned i, Value value) { to[here.begin + i] = value; });
      });
    }
  }
};

/// Reads acc at some indices, and finds whether all of acc is finite.
template <class T>
struct Gather {
  using Value = Accumulation<T>;
  struct Shared {};

  Pieces<T> acc;
  const Index* indices;
  std::uint64_t count;
  Value* values;
  std::uint64_t* finite;  ///< set to 0 if acc is not finite

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    for (std::uint64_t tile = block.number(); tile < acc.tiles; tile += block.count()) {
      const Stretch<T> here = acc.tile(tile);
      block.each([&](unsigned thread) {
        Key<Value> largest = 0;
        each_loaded<kFewerBytes>(
            thread, here.size, [&](std::size_t i) { return magnitude_key(here.acc(i)); },
            [&](unsigned, Key<Value> key) { largest = key > largest ? key : largest; });
        if (!is_finite_key<Value>(largest)) {
          clear(*finite);
        }
      });
    }
    each_of(block, count, [&](std::uint64_t i, unsigned) {
      const std::uint64_t index = indices[i];
      const Piece<T>& piece = acc.of(index);
      values[i] = piece.acc(index - piece.begin);
    });
  }
};

/// Sets tensor to the sums, divided and rounded, and residual to 0; if the step did not happen,
/// only sets tensor to NaN. It does the same as sparse::commit_whole() (residual/commit.hpp), or as
/// fill_nan().
template <class T>
struct CommitWhole {
  using Value = Accumulation<T>;
  struct Shared {};

  Pieces<T> acc;
  /// The sums of the whole vector.
  const Value* sums;
  const std::uint64_t* did_happen;
  Value divisor;
  /// May be null. If its value is 0, the kernel does nothing.
  const std::uint64_t* only_if = nullptr;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    if (only_if != nullptr && *only_if == 0) {
      return;
    }
    constexpr Value kNan = std::numeric_limits<Value>::quiet_NaN();
    const bool happened = *did_happen != 0;
    for (std::uint64_t tile = block.number(); tile < acc.tiles; tile += block.count()) {
      const Stretch<T> here = acc.tile(tile);
      block.each([&](unsigned thread) {
        if (!happened) {
          for (unsigned i = thread; i < here.size; i += kThreads) {
            here.tensor[i] = narrow<T>(kNan);
          }
          return;
        }
        each_loaded<kFewestBytes>(
            thread, here.size, [&](std::size_t i) { return sums[here.begin + i]; },
            [&](unsigned i, Value sum) {
              if (here.residual != nullptr) {
                here.residual[i] = 0;
              }
              here.tensor[i] = narrow<T>(sum / divisor);
            });
      });
    }
  }
};

}  // namespace gtopk::sparse::device
