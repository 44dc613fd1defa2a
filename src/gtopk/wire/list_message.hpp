// Sparse, wire room: a list of entries as it travels: the header, then two arrays, the wider type
// first so that both are aligned. Selection and merge write straight into the message; nothing is
// copied to send it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include <fmt/format.h>

#include "collectives/signature.hpp"
#include "engine/group_view.hpp"
#include "gtopk/error.hpp"
#include "gtopk/value/entries.hpp"

namespace gtopk::sparse {

template <class Value, class Index>
class ListMessage {
 public:
  static constexpr std::size_t kEntryBytes = sizeof(Value) + sizeof(Index);
  [[nodiscard]] static constexpr std::size_t bytes_for(std::size_t entries) {
    return collectives::kHeaderBytes + entries * kEntryBytes;
  }

  ListMessage() = default;
  /// An empty message in `storage`, which has bytes_for(capacity) bytes, aligned to 8.
  ListMessage(std::span<std::byte> storage, std::size_t capacity)
      : storage_(storage), capacity_(capacity) {}

  /// Where capacity entries may be written, before seal().
  [[nodiscard]] EntriesOut<Value, Index> room() { return arrays(capacity_); }

  /// Closes the gap between the arrays and writes the header. Not finite: no entries travel.
  void seal(const collectives::Signature& signature, std::uint64_t sequence, std::size_t count,
            bool finite) {
    count_ = finite ? count : 0;
    finite_ = finite;
    if (count_ < capacity_) {
      const EntriesOut<Value, Index> from = arrays(capacity_);
      const EntriesOut<Value, Index> to = arrays(count_);
      if constexpr (kValuesFirst) {
        std::memmove(to.indices, from.indices, count_ * sizeof(Index));
      } else {
        std::memmove(to.values, from.values, count_ * sizeof(Value));
      }
    }
    const std::uint16_t flags = finite ? 0 : collectives::Header::kNonFinite;
    collectives::write_header(storage_, signature, sequence,
                              {.count = count_, .flags = flags, .index_bytes = sizeof(Index)});
  }

  /// Takes `received` bytes in storage for what `from` sent. Throws Error{kMismatch} for whatever
  /// does not fit the signature: the values of both sides where ranks differ, the offending field
  /// where bytes are damaged.
  void open(std::size_t received, const collectives::Signature& signature,
            const engine::GroupView& group, std::uint32_t from) {
    const collectives::Header header =
        collectives::read_header(storage_.first(received), signature, group, from);
    const auto refuse = [&](const std::string& what) {
      throw Error(ErrorKind::kMismatch,
                  fmt::format("{} sent a damaged list: {}", group.member(from), what));
    };
    if (header.index_bytes != sizeof(Index)) {
      refuse(fmt::format("{}-byte indices, expected {}", header.index_bytes, sizeof(Index)));
    }
    if (header.count > capacity_ || received != bytes_for(header.count)) {
      refuse(fmt::format("{} entries in {} bytes, expected at most {} entries of {} bytes",
                         header.count, received, capacity_, kEntryBytes));
    }
    count_ = header.count;
    finite_ = (header.flags & collectives::Header::kNonFinite) == 0;
    if (!finite_ && count_ != 0)
      refuse(fmt::format("{} entries of a step that did not happen", count_));
    const Entries<Value, Index> list = entries();
    bool ascending = true;
    for (std::size_t i = 1; i < count_; ++i) ascending &= list.indices[i - 1] < list.indices[i];
    if (!ascending || (count_ != 0 && list.indices[count_ - 1] >= signature.d)) {
      refuse(fmt::format("indices not ascending below {}", signature.d));
    }
  }

  [[nodiscard]] Entries<Value, Index> entries() const {
    const EntriesOut<Value, Index> at = arrays(count_);
    return {at.indices, at.values, count_};
  }
  [[nodiscard]] bool finite() const { return finite_; }
  /// The whole message, to send; after seal() or open().
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return storage_.first(bytes_for(count_));
  }
  /// The whole room, to receive into.
  [[nodiscard]] std::span<std::byte> storage() { return storage_; }

 private:
  static constexpr bool kValuesFirst = sizeof(Value) >= sizeof(Index);

  [[nodiscard]] EntriesOut<Value, Index> arrays(std::size_t count) const {
    std::byte* const first = storage_.data() + collectives::kHeaderBytes;
    if constexpr (kValuesFirst) {
      return {reinterpret_cast<Index*>(first + count * sizeof(Value)),
              reinterpret_cast<Value*>(first)};
    } else {
      return {reinterpret_cast<Index*>(first),
              reinterpret_cast<Value*>(first + count * sizeof(Index))};
    }
  }

  std::span<std::byte> storage_;
  std::size_t capacity_ = 0;
  std::size_t count_ = 0;
  bool finite_ = true;
};

}  // namespace gtopk::sparse
