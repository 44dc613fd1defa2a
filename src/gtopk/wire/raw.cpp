#include "src/gtopk/wire/raw.hpp"

#include <fmt/format.h>

#include <cstring>

namespace gtopk::sparse {
namespace {

/// Lays out the arrays after the front.
void lay_out(EntryType type, List& list, std::size_t count) {
  lay_out(type, list, list.memory.data() + kFrontBytes, count);
}

template <class Index>
bool ascend_below(const Index* indices, std::size_t size, std::uint64_t d) {
  bool ascending = true;
  for (std::size_t i = 1; i < size; ++i) {
    ascending &= indices[i - 1] < indices[i];
  }
  return ascending && (size == 0 || indices[size - 1] < d);
}

class Raw final : public Codec {
 public:
  List make(EntryType type, std::size_t capacity, BufferSource& buffers) const override {
    List list;
    list.memory = buffers.buffer(kFrontBytes + capacity * type.bytes());
    list.capacity = capacity;
    lay_out(type, list, capacity);
    return list;
  }

  /// Closes the gap between the arrays.
  void close(EntryType type, List& list, std::size_t count) const override {
    const std::byte* const indices = list.indices;
    const std::byte* const values = list.values;
    list.size = count;
    lay_out(type, list, count);
    if (list.indices != indices) {
      std::memmove(list.indices, indices, count * type.index_bytes);
    }
    if (list.values != values) {
      std::memmove(list.values, values, count * type.value_bytes());
    }
  }

  [[nodiscard]] bool codes() const override { return false; }

  std::size_t message_bytes(EntryType type, std::size_t capacity,
                            std::uint64_t /*d*/) const override {
    return kFrontBytes + capacity * type.bytes();
  }

  std::span<std::byte> encode(EntryType type, const List& list, std::uint64_t /*d*/,
                              BufferSource& /*buffers*/) const override {
    return list.memory.first(kFrontBytes + list.size * type.bytes());
  }

  List decode(EntryType type, const ListHeader& says, std::span<std::byte> message,
              std::size_t capacity, std::uint64_t d, BufferSource& /*buffers*/) const override {
    check(type, says, message.size(), capacity);
    List list;
    list.memory = message;
    list.capacity = says.count;
    list.size = says.count;
    lay_out(type, list, says.count);
    bool valid = false;
    visit_entry(type, [&]<class Value, class Index>() {
      valid = ascend_below(reinterpret_cast<const Index*>(list.indices), list.size, d);
    });
    if (!valid) {
      throw Damaged(fmt::format("indices not ascending below {}", d));
    }
    return list;
  }

 private:
  /// Throws Damaged for errors that can be detected without reading the body.
  static void check(EntryType type, const ListHeader& says, std::size_t message_bytes,
                    std::size_t capacity) {
    if (says.index_bytes != type.index_bytes) {
      throw Damaged(
          fmt::format("{}-byte indices, expected {}", says.index_bytes, type.index_bytes));
    }
    // Check the count first: its product below must not wrap around.
    if (says.count > capacity || message_bytes != kFrontBytes + says.count * type.bytes()) {
      throw Damaged(fmt::format("{} entries in {} bytes, expected at most {} entries of {} bytes",
                                says.count, message_bytes, capacity, type.bytes()));
    }
  }
};

const Raw kCodec{};

}  // namespace

const CodecRow kRaw{"raw", "indices and values as they lie in memory", kCodec};

}  // namespace gtopk::sparse
