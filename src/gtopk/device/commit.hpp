// Sparse, device: the one sweep that writes tensor and residual, and the few entries that are
// applied after it. The host computes these entries from lists of k entries (residual/edits.hpp);
// the device reads them from pinned memory. One thread of each block reads how many there are,
// because each read crosses the bus.
#pragma once

#include <cstdint>
#include <limits>

#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/gtopk/value/edits.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse::device {

/// Sets residual to acc and tensor to 0; if the step did not happen, only sets tensor to NaN.
template <class T>
struct Absorb {
  using Value = Accumulation<T>;
  struct Shared {
    std::uint64_t did_happen;
    std::uint64_t not_at_all;
  };

  Pieces<T> acc;
  const std::uint64_t* did_happen;
  /// May be null. If its value is not 0, the kernel does nothing.
  const std::uint64_t* unless = nullptr;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {  // reads host memory
        shared.did_happen = *did_happen;
        shared.not_at_all = unless == nullptr ? 0 : *unless;
      }
    });
    if (block.read(shared.not_at_all) != 0) {
      return;
    }
    constexpr Value kNan = std::numeric_limits<Value>::quiet_NaN();
    const bool happened = block.read(shared.did_happen) != 0;
    for (std::uint64_t tile = block.number(); tile < acc.tiles; tile += block.count()) {
      const Stretch<T> here = acc.tile(tile);
      block.each([&](unsigned thread) {
        if (happened && here.residual != nullptr) {
          each_loaded(
              thread, here.size, [&](std::size_t i) { return here.acc(i); },
              [&](unsigned i, Value value) {
                here.residual[i] = value;
                here.tensor[i] = T{};
              });
        } else {
          for (unsigned i = thread; i < here.size; i += kThreads) {
            here.tensor[i] = happened ? T{} : narrow<T>(kNan);
          }
        }
      });
    }
  }
};

/// Clears residual and momentum at indices that were sent, and delivers the result.
template <class T>
struct ClearAndDeliver {
  using Value = Accumulation<T>;
  struct Shared {
    std::uint64_t cleared;
    std::uint64_t delivered;
  };

  Pieces<T> acc;
  /// The whole vector's momentum; may be null.
  Value* momentum;
  Edits<Value, Index> edits;
  const EditCounts* counts;
  Value divisor;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {
        const bool happened = counts->happened != 0;
        shared.cleared = happened ? counts->cleared : 0;
        shared.delivered = happened ? counts->delivered : 0;
      }
    });
    const std::uint64_t cleared = block.read(shared.cleared);
    const std::uint64_t delivered = block.read(shared.delivered);
    const std::uint64_t all_threads = block.count() * kThreads;
    block.each([&](unsigned thread) {
      const std::uint64_t first = block.number() * kThreads + thread;
      for (std::uint64_t i = first; i < cleared; i += all_threads) {
        const std::uint64_t index = edits.cleared[i];
        const Piece<T>& piece = acc.of(index);
        if (piece.residual != nullptr) {
          piece.residual[index - piece.begin] = 0;
        }
        if (momentum != nullptr) {
          momentum[index] = 0;
        }
      }
      for (std::uint64_t i = first; i < delivered; i += all_threads) {
        const std::uint64_t index = edits.delivered.indices[i];
        const Piece<T>& piece = acc.of(index);
        piece.tensor[index - piece.begin] = narrow<T>(edits.delivered.values[i] / divisor);
      }
    });
  }
};

/// Adds entries that nodes dropped to the residual. One thread adds all entries of one index, in
/// the order of the lists.
template <class T>
struct PutBackDropped {
  using Value = Accumulation<T>;
  struct Shared {
    std::uint64_t returned;
  };

  Pieces<T> acc;
  Edits<Value, Index> edits;
  const EditCounts* counts;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {
        shared.returned = counts->happened != 0 ? counts->returned : 0;
      }
    });
    const std::uint64_t returned = block.read(shared.returned);
    const std::uint64_t all_threads = block.count() * kThreads;
    const auto* const indices = edits.returned.indices;
    block.each([&](unsigned thread) {
      for (std::uint64_t i = block.number() * kThreads + thread; i < returned; i += all_threads) {
        const Index index = indices[i];
        const Piece<T>& piece = acc.of(index);
        if ((i > 0 && indices[i - 1] == index) || piece.residual == nullptr) {
          continue;
        }
        Value sum = piece.residual[index - piece.begin];
        for (std::uint64_t j = i; j < returned && indices[j] == index; ++j) {
          sum += edits.returned.values[j];
        }
        piece.residual[index - piece.begin] = sum;
      }
    });
  }
};

/// Launches a whole commit, which does the same as sparse::commit() and mask()
/// (residual/commit.hpp), or as fill_nan(). Nothing is done if `unless` points to a value other
/// than 0; the counts must then say that the step did not happen.
template <class T, class Executor>
void commit(Executor& executor, const Pieces<T>& acc, Accumulation<T>* momentum,
            const Edits<Accumulation<T>, Index>& edits, const EditCounts* counts,
            Accumulation<T> divisor, const std::uint64_t* unless = nullptr) {
  executor.launch(executor.wide(), Absorb<T>{acc, &counts->happened, unless});
  executor.launch(executor.wide(), ClearAndDeliver<T>{acc, momentum, edits, counts, divisor});
  executor.launch(executor.wide(), PutBackDropped<T>{acc, edits, counts});
}

}  // namespace gtopk::sparse::device
