// Sparse, device: computes the count-sketch of acc, and finds the heavy elements in a sum of
// sketches. Cells are summed as whole numbers, so the order of the threads does not matter. Each
// element's estimate is stored once, because the selection reads it several times.
#pragma once

#include <cstdint>
#include <limits>

#include "src/gtopk/device/arena.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/gtopk/device/select.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/gtopk/value/sketch_hashes.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse::device {

/// The workspace of both tasks, in the device's memory; only one runs at a time.
template <class Value>
struct SketchWorkspace {
  std::uint64_t* largest = nullptr;  ///< the key of the largest |acc|
  std::uint64_t* numbers = nullptr;  ///< one per cell
  Value* cells = nullptr;
  Value* estimates = nullptr;
  Piece<Value>* piece = nullptr;  ///< the piece of the estimates
  SelectionWorkspace<Value> selection;

  static SketchWorkspace in(Arena& arena, std::uint64_t cells, std::uint64_t d,
                            std::uint64_t most) {
    SketchWorkspace workspace;
    workspace.largest = arena.take<std::uint64_t>(1);
    workspace.numbers = arena.take<std::uint64_t>(cells);
    workspace.cells = arena.take<Value>(cells);
    workspace.estimates = arena.take<Value>(d);
    workspace.piece = arena.take<Piece<Value>>(1);
    workspace.selection = SelectionWorkspace<Value>::in(
        arena, tiles_of(d), SelectionWorkspace<Value>::candidates_of(d, most));
    return workspace;
  }
};

/// Clears the cells. Runs first.
struct ClearCells {
  struct Shared {};

  std::uint64_t* largest;
  std::uint64_t* numbers;
  std::uint64_t cells;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    each_of(block, cells, [&](std::uint64_t i, unsigned) { numbers[i] = 0; });
    block.each([&](unsigned thread) {
      if (block.number() == 0 && thread == 0) {
        *largest = 0;
      }
    });
  }
};

template <class T>
struct FindLargest {
  using Value = Accumulation<T>;
  struct Shared {
    std::uint64_t largest;
  };

  Pieces<T> acc;
  std::uint64_t* largest;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {
        shared.largest = 0;
      }
    });
    for (std::uint64_t tile = block.number(); tile < acc.tiles; tile += block.count()) {
      const Stretch<T> here = acc.tile(tile);
      block.each([&](unsigned thread) {
        Key<Value> key = 0;
        each_loaded(
            thread, here.size, [&](std::size_t i) { return magnitude_key(here.acc(i)); },
            [&](unsigned, Key<Value> next) { key = next > key ? next : key; });
        raise_by_all(shared.largest, key);
      });
    }
    block.each([&](unsigned thread) {
      if (thread == 0) {
        raise(*largest, shared.largest);
      }
    });
  }
};

template <class T>
struct AddToSketch {
  using Value = Accumulation<T>;
  struct Shared {};

  Pieces<T> acc;
  SketchHashes hashes;
  std::uint64_t d;
  const std::uint64_t* largest;
  std::uint64_t* numbers;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    const auto key = static_cast<Key<Value>>(*largest);
    if (!is_finite_key<Value>(key)) {
      return;
    }
    const FixedPoint point = FixedPoint::of<Value>(key, d);
    for (std::uint64_t tile = block.number(); tile < acc.tiles; tile += block.count()) {
      const Stretch<T> here = acc.tile(tile);
      block.each([&](unsigned thread) {
        for (unsigned i = thread; i < here.size; i += kThreads) {
          const std::uint64_t number = point.round(here.acc(i));
          std::uint64_t* row = numbers;
          for (const SketchHashes::Row& each : hashes.rows) {
            const std::uint64_t cell =
                cell_of(polynomial(each.cell, here.begin + i), hashes.columns);
            add(row[cell], signed_by(polynomial(each.sign, here.begin + i), number));
            row += hashes.columns;
          }
        }
      });
    }
  }
};

/// Writes the cells as values, or as NaN if any element of acc was not finite.
template <class Value>
struct WriteCells {
  struct Shared {};

  const std::uint64_t* largest;
  const std::uint64_t* numbers;
  std::uint64_t count;
  std::uint64_t d;
  Value* cells;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    constexpr Value kNan = std::numeric_limits<Value>::quiet_NaN();
    const auto key = static_cast<Key<Value>>(*largest);
    const bool finite = is_finite_key<Value>(key);
    const FixedPoint point = FixedPoint::of<Value>(finite ? key : 0, d);
    each_of(block, count, [&](std::uint64_t i, unsigned) {
      cells[i] = finite ? point.value<Value>(numbers[i]) : kNan;
    });
  }
};

/// Launches the sketch of acc. `cells` holds the cells of all rows, and may be pinned memory.
template <class T, class Executor>
void sketch(Executor& executor, const Pieces<T>& acc, std::uint64_t d, const SketchHashes& hashes,
            const SketchWorkspace<Accumulation<T>>& workspace, Accumulation<T>* cells) {
  const std::uint64_t count = hashes.cells();
  executor.launch(executor.wide(), ClearCells{workspace.largest, workspace.numbers, count});
  executor.launch(executor.wide(), FindLargest<T>{acc, workspace.largest});
  executor.launch(executor.wide(),
                  AddToSketch<T>{acc, hashes, d, workspace.largest, workspace.numbers});
  executor.launch(executor.wide(), WriteCells<Accumulation<T>>{workspace.largest, workspace.numbers,
                                                               count, d, cells});
}

/// Copies the summed cells to the memory from which estimates are computed, and sets the piece that
/// will hold the estimates.
template <class Value>
struct TakeCells {
  struct Shared {};

  const Value* from;
  std::uint64_t count;
  Value* cells;
  Piece<Value> estimates;
  Piece<Value>* piece;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    each_of(block, count, [&](std::uint64_t i, unsigned) { cells[i] = from[i]; });
    block.each([&](unsigned thread) {
      if (block.number() == 0 && thread == 0) {
        *piece = estimates;
      }
    });
  }
};

template <class Value>
struct Estimate {
  struct Shared {
    Value of[SketchHashes::kRows][kThreads];  ///< not in registers, because there are too few
  };

  const Value* cells;
  SketchHashes hashes;
  std::uint64_t d;
  Value* estimates;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    each_of(block, d, [&](std::uint64_t i, unsigned thread) {
      const Value* row = cells;
      for (unsigned number = 0; number < SketchHashes::kRows; ++number) {
        const SketchHashes::Row& each = hashes.rows[number];
        const std::uint64_t cell = cell_of(polynomial(each.cell, i), hashes.columns);
        shared.of[number][thread] = signed_by(polynomial(each.sign, i), row[cell]);
        row += hashes.columns;
      }
      static_assert(SketchHashes::kRows == 5);
      const auto of = [&](unsigned number) { return shared.of[number][thread]; };
      estimates[i] = median(of(0), of(1), of(2), of(3), of(4));
    });
  }
};

/// Launches the kernels that find the first `most` of d elements in the selection order of their
/// estimates. `sums` are finite cells. Cells and entries may be in pinned memory.
template <class Value, class Executor>
void find_heaviest(Executor& executor, std::uint64_t d, const SketchHashes& hashes,
                   const Value* sums, std::uint64_t most, const SketchWorkspace<Value>& workspace,
                   EntriesOut<Value, Index> heaviest, Report* report) {
  const Piece<Value> all{workspace.estimates, nullptr, 0, d, 0};
  executor.launch(executor.wide(),
                  TakeCells<Value>{sums, hashes.cells(), workspace.cells, all, workspace.piece});
  executor.launch(executor.wide(),
                  Estimate<Value>{workspace.cells, hashes, d, workspace.estimates});
  select<Value>(executor, Pieces<Value>{workspace.piece, 1, tiles_of(d)}, d, most,
                workspace.selection, heaviest, report);
}

}  // namespace gtopk::sparse::device
