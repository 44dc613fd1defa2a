// Sparse, device room: lists that stay on the device between selection and commit: whether one that
// was received may be used, whether a result may be delivered, and the commit of lists where they
// lie. The host says which lists these are in pinned memory, as it learns it while they travel.
#pragma once

#include <cstdint>

#include "gtopk/device_lists.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/commit.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/accumulation.hpp"

namespace gtopk::sparse::device {

template <class Value, class Index>
[[nodiscard]] GTOPK_HOST_DEVICE Entries<Value, Index> entries_of(const DeviceList& list) {
  return {static_cast<const Index*>(list.indices), static_cast<const Value*>(list.values),
          static_cast<std::size_t>(list.size)};
}

/// Whether ascending indices have this one.
template <class Value, class Index>
[[nodiscard]] GTOPK_HOST_DEVICE bool contains(const Entries<Value, Index>& entries, Index index) {
  std::uint64_t low = 0;
  std::uint64_t high = entries.size;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (entries.indices[middle] < index) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < entries.size && entries.indices[low] == index;
}

/// Whether indices ascend below d.
template <class Index>
struct CheckIndices {
  struct Shared {};

  const Index* indices;
  std::uint64_t size;
  std::uint64_t d;
  std::uint64_t* sound;  ///< set to 0 if they do not

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    each_of(block, size, [&](std::uint64_t i) {
      if (indices[i] >= d || (i > 0 && indices[i - 1] >= indices[i])) {
        *sound = 0;
      }
    });
  }
};

/// Whether values, divided and rounded, are finite.
template <class T>
struct CheckValues {
  using Value = Accumulation<T>;
  struct Shared {};

  const Value* values;
  std::uint64_t size;
  Value divisor;
  std::uint64_t* fits;  ///< set to 0 if one is not

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    each_of(block, size, [&](std::uint64_t i) {
      const Value rounded = widen(narrow<T>(values[i] / divisor));
      if (!is_finite_key<Value>(magnitude_key(rounded))) {
        *fits = 0;
      }
    });
  }
};

/// For the host, in pinned memory.
template <class Value, class Index>
struct CopyEntries {
  struct Shared {};

  Entries<Value, Index> list;
  EntriesOut<Value, Index> copy;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    each_of(block, list.size, [&](std::uint64_t i) {
      copy.indices[i] = list.indices[i];
      copy.values[i] = list.values[i];
    });
  }
};

/// A DeviceList in shared memory.
struct SharedList {
  void* indices;
  void* values;
  std::uint64_t size;

  [[nodiscard]] GTOPK_HOST_DEVICE static SharedList of(const DeviceList& list) {
    return {list.indices, list.values, list.size};
  }
};
template <class Value, class Index>
[[nodiscard]] GTOPK_HOST_DEVICE Entries<Value, Index> entries_of(const SharedList& list) {
  return {static_cast<const Index*>(list.indices), static_cast<const Value*>(list.values),
          static_cast<std::size_t>(list.size)};
}

/// Clears residual and momentum where something was sent, and delivers the result.
template <class T, class Index>
struct ClearAndDeliverLists {
  using Value = Accumulation<T>;
  struct Shared {
    std::uint64_t happened;
    std::uint64_t put_back_own;
    SharedList own;
    SharedList result;
  };

  Pieces<T> acc;
  /// Of the whole vector; may be null.
  Value* momentum;
  const ListEdits* edits;
  Value divisor;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {  // from the host's memory
        shared.happened = edits->happened;
        shared.put_back_own = edits->put_back_own;
        shared.own = SharedList::of(edits->own);
        shared.result = SharedList::of(edits->result);
      }
    });
    const Shared seen = block.read(shared);
    if (seen.happened == 0) {
      return;
    }
    const auto own = entries_of<Value, Index>(seen.own);
    const auto result = entries_of<Value, Index>(seen.result);
    const bool all = seen.put_back_own == 0;
    each_of(block, own.size, [&](std::uint64_t i) {
      const Index index = own.indices[i];
      if (!all && !contains(result, index)) {
        return;
      }
      const Piece<T>& piece = acc.of(index);
      if (piece.residual != nullptr) {
        piece.residual[index - piece.begin] = 0;
      }
      if (momentum != nullptr) {
        momentum[index] = 0;
      }
    });
    each_of(block, result.size, [&](std::uint64_t i) {
      const Index index = result.indices[i];
      const Piece<T>& piece = acc.of(index);
      piece.tensor[index - piece.begin] = narrow<T>(result.values[i] / divisor);
    });
  }
};

/// Adds to the residual what one node has dropped. Launch after launch, in the order of the lists.
template <class T, class Index>
struct PutBackList {
  using Value = Accumulation<T>;
  struct Shared {
    std::uint64_t applies;
    std::uint64_t put_back_own;
    SharedList list;
    SharedList result;
  };

  Pieces<T> acc;
  const ListEdits* edits;
  std::uint32_t number;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {  // from the host's memory
        const bool applies = edits->happened != 0 && number < edits->dropped_lists;
        shared.applies = applies ? 1 : 0;
        shared.put_back_own = edits->put_back_own;
        shared.list = SharedList::of(edits->dropped[applies ? number : 0]);
        shared.result = SharedList::of(edits->result);
      }
    });
    const Shared seen = block.read(shared);
    if (seen.applies == 0) {
      return;
    }
    const auto list = entries_of<Value, Index>(seen.list);
    const auto result = entries_of<Value, Index>(seen.result);
    const bool all = seen.put_back_own == 0;
    each_of(block, list.size, [&](std::uint64_t i) {
      const Index index = list.indices[i];
      const Piece<T>& piece = acc.of(index);
      if (piece.residual != nullptr && (all || contains(result, index))) {
        piece.residual[index - piece.begin] += list.values[i];
      }
    });
  }
};

/// All launches of a commit of so many dropped lists at most; what commit() does (commit.hpp).
template <class T, class Index, class Executor>
void commit_lists(Executor& executor, const Pieces<T>& acc, Accumulation<T>* momentum,
                  const ListEdits* edits, std::uint32_t most_dropped, Accumulation<T> divisor) {
  executor.launch(executor.wide(), Absorb<T>{acc, &edits->happened});
  executor.launch(executor.wide(), ClearAndDeliverLists<T, Index>{acc, momentum, edits, divisor});
  for (std::uint32_t number = 0; number < most_dropped; ++number) {
    executor.launch(executor.wide(), PutBackList<T, Index>{acc, edits, number});
  }
}

}  // namespace gtopk::sparse::device
