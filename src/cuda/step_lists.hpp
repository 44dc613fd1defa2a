// CUDA room: what the two halves of a step on a device share with the core, in one block of pinned
// memory: the lists, the reports, and the table of the tensor's pieces.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/detached.hpp"
#include "gtopk/types.hpp"
#include "src/cuda/calls.hpp"

namespace gtopk::cuda {

struct StepLists {
  Detached lists;
  SelectionReport* report = nullptr;  ///< lists.report, to be written
  SelectorState* last = nullptr;      ///< to be written before the selection, which reads it
  SelectorState* next = nullptr;      ///< lists.next, to be written
  PieceOf* table = nullptr;
  std::size_t table_at = 0;  ///< where that is, in bytes
  std::size_t bytes = 0;     ///< of all

  /// From null it only measures.
  [[nodiscard]] static StepLists in(std::byte* memory, const DetachedRoom& room, DataType dtype,
                                    std::size_t pieces) {
    static constexpr std::size_t kLine = 64;
    const std::size_t value_bytes = dtype == DataType::kFloat64 ? 8 : 4;
    StepLists all;
    const auto take = [&](std::size_t bytes) -> void* {
      const std::size_t at = all.bytes;
      all.bytes += (bytes + kLine - 1) / kLine * kLine;
      return memory == nullptr ? nullptr : memory + at;
    };
    const auto entries = [&](std::uint64_t count) -> DetachedEntries {
      void* const values = take(count * value_bytes);
      return {take(count * room.index_bytes), values};
    };
    all.lists.counts = static_cast<EditCounts*>(take(sizeof(EditCounts)));
    all.report = static_cast<SelectionReport*>(take(sizeof(SelectionReport)));
    all.lists.report = all.report;
    all.last = static_cast<SelectorState*>(take(sizeof(SelectorState)));
    all.next = static_cast<SelectorState*>(take(sizeof(SelectorState)));
    all.lists.next = all.next;
    all.table_at = all.bytes;
    all.table = static_cast<PieceOf*>(take(pieces * sizeof(PieceOf)));
    all.lists.selected = entries(room.selected);
    all.lists.cleared = take(room.cleared * room.index_bytes);
    all.lists.returned = entries(room.returned);
    all.lists.delivered = entries(room.delivered);
    return all;
  }

  /// Before each step: nothing has been selected, and nothing has happened.
  void reset() const {
    *lists.counts = EditCounts();
    *report = SelectionReport();
    *last = SelectorState();
    *next = SelectorState();
  }
};

}  // namespace gtopk::cuda
