// Public surface: elements in memory: pointer, count, type, and which memory it is. Collectives are
// called with these buffers, and know nothing else about a tensor.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ranges>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtopk/memory.hpp"
#include "gtopk/types.hpp"

namespace gtopk {

/// C++ types that are also element types.
template <class T>
concept NativeElement = std::same_as<T, std::byte> || std::same_as<T, float> ||
                        std::same_as<T, double> || (std::integral<T> && sizeof(T) <= 8);

template <NativeElement T>
[[nodiscard]] constexpr DataType type_of() {
  if constexpr (std::same_as<T, float>) {
    return DataType::kFloat32;
  } else if constexpr (std::same_as<T, double>) {
    return DataType::kFloat64;
  } else if constexpr (std::same_as<T, bool>) {
    return DataType::kBool;
  } else if constexpr (std::same_as<T, std::byte>) {
    return DataType::kUint8;
  } else if constexpr (sizeof(T) == 1) {
    return std::signed_integral<T> ? DataType::kInt8 : DataType::kUint8;
  } else if constexpr (sizeof(T) == 2) {
    return std::signed_integral<T> ? DataType::kInt16 : DataType::kUint16;
  } else if constexpr (sizeof(T) == 4) {
    return std::signed_integral<T> ? DataType::kInt32 : DataType::kUint32;
  } else {
    return std::signed_integral<T> ? DataType::kInt64 : DataType::kUint64;
  }
}

/// The number of elements of this type in `bytes`; for an opaque type, the number of bytes. Throws
/// Error{kInvalidArgument} if the last element is not whole.
[[nodiscard]] std::uint64_t elements_in(std::size_t bytes, DataType dtype);
[[nodiscard]] std::size_t bytes_of(std::uint64_t elements, DataType dtype);
/// Throws Error{kInvalidArgument} for a null pointer to `count` elements.
[[noreturn]] void refuse_null(std::uint64_t count, DataType dtype);

/// `Void` is `const void` if the buffer is only read. Converts from contiguous ranges in host
/// memory: all_reduce(values), broadcast(bytes, 0).
template <class Void>
struct BasicBuffer {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;

  Void* data = nullptr;
  std::uint64_t count = 0;  ///< elements; bytes of an opaque type
  DataType dtype = DataType::kUint8;
  Memory memory;

  constexpr BasicBuffer() = default;
  /// Throws Error{kInvalidArgument} if `data` is null and `count` is not 0.
  constexpr BasicBuffer(Void* data, std::uint64_t count, DataType dtype, Memory memory = {})
      : data(data), count(count), dtype(dtype), memory(memory) {
    if (data == nullptr && count != 0) {
      refuse_null(count, dtype);
    }
  }
  /// The elements in these bytes; throws like elements_in().
  BasicBuffer(BasicBytes<Byte> bytes, DataType dtype)
      : BasicBuffer(bytes.data(), elements_in(bytes.size(), dtype), dtype, bytes.memory()) {}
  template <class Range>
    requires std::ranges::contiguous_range<Range> && std::ranges::sized_range<Range> &&
             NativeElement<std::remove_cv_t<std::ranges::range_value_t<Range>>> &&
             std::convertible_to<decltype(std::ranges::data(std::declval<Range&>())), Void*>
  constexpr BasicBuffer(Range&& values)  // NOLINT(google-explicit-constructor)
      : BasicBuffer(std::ranges::data(values), std::ranges::size(values),
                    type_of<std::remove_cv_t<std::ranges::range_value_t<Range>>>()) {}
  /// Converts to a buffer that is only read.
  template <class Other>
    requires(std::same_as<const Other, Void> && !std::same_as<Other, Void>)
  constexpr BasicBuffer(const BasicBuffer<Other>& other)  // NOLINT(google-explicit-constructor)
      : BasicBuffer(other.data, other.count, other.dtype, other.memory) {}

  [[nodiscard]] BasicBytes<Byte> bytes() const {
    return {static_cast<Byte*>(data), bytes_of(count, dtype), memory};
  }
};

using Buffer = BasicBuffer<void>;
using ConstBuffer = BasicBuffer<const void>;

/// A list of buffers, such as one for each rank. Converts from ranges whose elements convert to
/// buffers.
template <class Void>
class BasicBuffers {
 public:
  using One = BasicBuffer<Void>;

  BasicBuffers() = default;
  BasicBuffers(std::initializer_list<One> list) : list_(list) {}
  template <class Range>
    requires(std::ranges::input_range<Range> &&
             std::convertible_to<std::ranges::range_reference_t<Range>, One> &&
             !std::same_as<std::remove_cvref_t<Range>, BasicBuffers>)
  BasicBuffers(Range&& list) {  // NOLINT(google-explicit-constructor)
    for (auto&& each : list) {
      list_.push_back(One(each));
    }
  }
  /// Converts from ranges of bytes, each of which holds elements of this type.
  template <std::ranges::input_range Range>
  BasicBuffers(const Range& list, DataType dtype) {
    for (const auto& each : list) {
      list_.push_back(One(BasicBytes<typename One::Byte>(each), dtype));
    }
  }

  [[nodiscard]] std::size_t size() const { return list_.size(); }
  [[nodiscard]] bool empty() const { return list_.empty(); }
  [[nodiscard]] const One& operator[](std::size_t at) const { return list_[at]; }
  [[nodiscard]] auto begin() const { return list_.begin(); }
  [[nodiscard]] auto end() const { return list_.end(); }
  void push_back(One buffer) { list_.push_back(buffer); }

 private:
  std::vector<One> list_;
};

using Buffers = BasicBuffers<void>;
using ConstBuffers = BasicBuffers<const void>;

}  // namespace gtopk
