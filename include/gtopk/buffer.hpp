/// @file
/// Elements in memory: pointer, count, type, and which memory it is. Collectives are called with
/// these buffers, and know nothing else about a tensor.
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

/// The element type that corresponds to a C++ type.
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
/// Error{kInvalidArgument} if they end in the middle of an element.
[[nodiscard]] std::uint64_t elements_in(std::size_t bytes, DataType dtype);
/// The number of bytes that this many elements occupy; for an opaque type, an element is a byte.
[[nodiscard]] std::size_t bytes_of(std::uint64_t elements, DataType dtype);
/// Throws Error{kInvalidArgument} for a null pointer to `count` elements.
[[noreturn]] void refuse_null(std::uint64_t count, DataType dtype);

/// Elements in memory, as collectives take them. `Void` is `const void` if the buffer is only read.
/// Converts from contiguous ranges in host memory: all_reduce(values), broadcast(bytes, 0).
template <class Void>
struct BasicBuffer {
  /// Bytes of the buffer, const if it is only read.
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;

  /// The first element; may be null if there is none.
  Void* data = nullptr;
  std::uint64_t count = 0;  ///< elements; bytes of an opaque type
  /// The type of all elements.
  DataType dtype = DataType::kUint8;
  Memory memory;  ///< where the elements lie

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
  /// Converts from contiguous ranges in host memory.
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

  /// The bytes of all elements.
  [[nodiscard]] BasicBytes<Byte> bytes() const {
    return {static_cast<Byte*>(data), bytes_of(count, dtype), memory};
  }
};

/// A buffer that a collective may write to.
using Buffer = BasicBuffer<void>;
/// A buffer that a collective only reads.
using ConstBuffer = BasicBuffer<const void>;

/// A list of buffers, such as one for each rank. Converts from ranges whose elements convert to
/// buffers.
template <class Void>
class BasicBuffers {
 public:
  /// The type of each buffer.
  using One = BasicBuffer<Void>;

  BasicBuffers() = default;
  /// These buffers, in this order.
  BasicBuffers(std::initializer_list<One> list) : list_(list) {}
  /// Converts from ranges whose elements convert to buffers.
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

  /// The number of buffers.
  [[nodiscard]] std::size_t size() const { return list_.size(); }
  /// Whether there is no buffer.
  [[nodiscard]] bool empty() const { return list_.empty(); }
  /// The buffer at this position; requires at < size().
  [[nodiscard]] const One& operator[](std::size_t at) const { return list_[at]; }
  /// Iterator to the first buffer.
  [[nodiscard]] auto begin() const { return list_.begin(); }
  /// Iterator past the last buffer.
  [[nodiscard]] auto end() const { return list_.end(); }
  /// Appends a buffer.
  void push_back(One buffer) { list_.push_back(buffer); }

 private:
  std::vector<One> list_;
};

/// Buffers that a collective may write to.
using Buffers = BasicBuffers<void>;
/// Buffers that a collective only reads.
using ConstBuffers = BasicBuffers<const void>;

}  // namespace gtopk
