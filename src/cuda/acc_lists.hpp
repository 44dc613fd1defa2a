// CUDA room: what the two halves of a call without a selection share with the core, in one block of
// pinned memory: sums, result, reports, and the table of the tensor's pieces.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/device_acc.hpp"
#include "gtopk/types.hpp"
#include "src/cuda/calls.hpp"

namespace gtopk::cuda {

struct AccLists {
  AccOnDevice lists;
  PieceOf* table = nullptr;
  std::size_t table_at = 0;  ///< where that is, in bytes
  std::size_t bytes = 0;     ///< of all

  /// From null it only measures.
  [[nodiscard]] static AccLists in(std::byte* memory, const AccRoom& room, DataType dtype,
                                   std::size_t pieces) {
    static constexpr std::size_t kLine = 64;
    const std::size_t value_bytes = dtype == DataType::kFloat64 ? 8 : 4;
    AccLists all;
    const auto take = [&](std::size_t bytes) -> void* {
      const std::size_t at = all.bytes;
      all.bytes += (bytes + kLine - 1) / kLine * kLine;
      return memory == nullptr ? nullptr : memory + at;
    };
    all.lists.counts = static_cast<EditCounts*>(take(sizeof(EditCounts)));
    all.lists.finite = static_cast<std::uint64_t*>(take(sizeof(std::uint64_t)));
    all.lists.report = static_cast<SelectionReport*>(take(sizeof(SelectionReport)));
    all.table_at = all.bytes;
    all.table = static_cast<PieceOf*>(take(pieces * sizeof(PieceOf)));
    all.lists.sums = take(room.sums * value_bytes);
    const auto entries = [&](std::uint64_t count) -> DetachedEntries {
      void* const values = take(count * value_bytes);
      return {take(count * room.index_bytes), values};
    };
    all.lists.candidates = entries(room.candidates);
    all.lists.delivered = entries(room.delivered);
    return all;
  }
};

}  // namespace gtopk::cuda
