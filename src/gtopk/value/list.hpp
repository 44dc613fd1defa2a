// Sparse, value: a list of entries in memory with erased types. Algorithms pass lists on, and
// computing code asks for the typed view. It does not know messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gtopk/types.hpp"
#include "src/gtopk/value/entries.hpp"

namespace gtopk::sparse {

/// The types of an entry's value and index.
struct EntryType {
  /// kFloat32 or kFloat64.
  DataType value = DataType::kFloat32;
  /// 4, or 8 if d >= 2^32.
  std::uint32_t index_bytes = 4;

  [[nodiscard]] std::size_t value_bytes() const { return value == DataType::kFloat64 ? 8 : 4; }
  [[nodiscard]] std::size_t bytes() const { return value_bytes() + index_bytes; }
};

/// Calls f.operator()<Value, Index>().
template <class F>
void visit_entry(EntryType type, F f) {
  if (type.value == DataType::kFloat64) {
    type.index_bytes == 8 ? f.template operator()<double, std::uint64_t>()
                          : f.template operator()<double, std::uint32_t>();
  } else {
    type.index_bytes == 8 ? f.template operator()<float, std::uint64_t>()
                          : f.template operator()<float, std::uint32_t>();
  }
}

/// A rank's selection as bytes.
struct CodedSelection {
  std::uint64_t entries = 0;
  /// The bytes that a codec has written; memory for a header precedes them.
  std::span<std::byte> code;
};

/// A list with ascending indices, each at most once. It is a view; the operation owns the memory.
struct List {
  std::span<std::byte> memory;
  std::byte* indices = nullptr;
  std::byte* values = nullptr;
  /// For each entry, the number of ranks whose values are added up in it; null means one rank.
  const std::uint32_t* counts = nullptr;
  /// The selections of which the list is the sum, in rank order, if it may be sent as selections;
  /// else empty.
  std::span<const CodedSelection> selections;
  std::size_t capacity = 0;
  std::size_t size = 0;
  /// False if a rank below had NaN or infinity; the list then has no entries.
  bool finite = true;
  /// Whether its values are already rounded for the wire.
  bool rounded = false;

  template <class Value, class Index>
  [[nodiscard]] Entries<Value, Index> entries() const {
    return {reinterpret_cast<const Index*>(indices), reinterpret_cast<const Value*>(values), size};
  }
  /// A view of `capacity` entries to write to.
  template <class Value, class Index>
  [[nodiscard]] EntriesOut<Value, Index> output() const {
    return {reinterpret_cast<Index*>(indices), reinterpret_cast<Value*>(values)};
  }
};

/// Lays out two arrays of `count` entries from `first` on, which is aligned to 64 bytes. The wider
/// type comes first, so that both arrays are aligned.
inline void lay_out(EntryType type, List& list, std::byte* first, std::size_t count) {
  const bool values_first = type.value_bytes() >= type.index_bytes;
  list.values = values_first ? first : first + count * type.index_bytes;
  list.indices = values_first ? first + count * type.value_bytes() : first;
}

}  // namespace gtopk::sparse
