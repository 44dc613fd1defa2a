// GPU: the data that a step on a device shares with the core, in one block of pinned memory: the
// table of the tensor's pieces, lists, sums, reports, and the edits to apply.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gtopk/detached.hpp"
#include "gtopk/device_acc.hpp"
#include "gtopk/types.hpp"
#include "src/cuda/calls.hpp"
#include "src/gpu/device_path.hpp"

namespace gtopk::gpu {

/// Divides one block of memory; from null, it only measures.
class Deal {
 public:
  Deal(std::byte* begin, std::size_t line) : begin_(begin), line_(line) {}

  [[nodiscard]] std::byte* take(std::size_t bytes) {
    const std::size_t at = taken_;
    taken_ += (bytes + line_ - 1) / line_ * line_;
    return begin_ == nullptr ? nullptr : begin_ + at;
  }
  template <class T>
  [[nodiscard]] T* one() {
    return reinterpret_cast<T*>(take(sizeof(T)));
  }
  [[nodiscard]] DetachedEntries entries(std::uint64_t count, std::size_t value_bytes) {
    void* const values = take(count * value_bytes);
    return {take(count * sizeof(cuda::Index)), values};
  }
  [[nodiscard]] std::size_t taken() const { return taken_; }

 private:
  std::byte* begin_;
  std::size_t line_;
  std::size_t taken_ = 0;
};

struct SharedWorkspace {
  std::size_t table_at = 0;  ///< position in bytes
  cuda::PieceOf* table = nullptr;
  SelectionReport* report = nullptr;  ///< of a selection, or of a sketch's heavy elements
  SelectorState* last = nullptr;      ///< written before the selection, which reads it
  SelectorState* next = nullptr;
  std::uint64_t* finite = nullptr;
  /// For `auto`: 1 once all of acc is requested, so that its sums are committed instead of lists.
  std::uint64_t* whole = nullptr;
  Detached lists;
  AccOnDevice sums;
  std::size_t bytes = 0;

  /// Lays out the workspace; from null, it only measures.
  [[nodiscard]] static SharedWorkspace in(std::byte* memory, const DevicePath& path) {
    const std::size_t value_bytes = size_of(accumulation_type(path.dtype));
    Deal deal(memory, 64);
    const auto entries = [&](std::uint64_t count) { return deal.entries(count, value_bytes); };
    SharedWorkspace all;
    all.report = deal.one<SelectionReport>();
    all.last = deal.one<SelectorState>();
    all.next = deal.one<SelectorState>();
    all.finite = deal.one<std::uint64_t>();
    all.whole = deal.one<std::uint64_t>();
    all.table_at = deal.taken();
    all.table = reinterpret_cast<cuda::PieceOf*>(deal.take(path.pieces * sizeof(cuda::PieceOf)));
    if (path.rule) {
      all.lists.counts = deal.one<EditCounts>();
      all.lists.selected = entries(path.edits.selected);
      all.lists.cleared = deal.take(path.edits.cleared * sizeof(cuda::Index));
      all.lists.returned = entries(path.edits.returned);
      all.lists.delivered = entries(path.edits.delivered);
    }
    if (path.sums) {
      all.sums.counts = deal.one<EditCounts>();
      all.sums.sums = deal.take(path.sums->sums * value_bytes);
      all.sums.candidates = entries(path.sums->candidates);
      all.sums.delivered = entries(path.sums->delivered);
    }
    all.lists.report = all.sums.report = all.report;
    all.lists.next = all.next;
    all.sums.finite = all.finite;
    all.bytes = deal.taken();
    return all;
  }

  /// Must be called before each step. It records that nothing has been selected and nothing has
  /// happened.
  void reset() const {
    *report = SelectionReport();
    *last = SelectorState();
    *next = SelectorState();
    *finite = 1;
    *whole = 0;
    for (EditCounts* const counts : {lists.counts, sums.counts}) {
      if (counts != nullptr) {
        *counts = EditCounts();
      }
    }
  }
};

}  // namespace gtopk::gpu
