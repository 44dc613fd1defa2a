/// @file
/// The kind of memory that bytes lie in, and views of bytes. Device memory cannot be read or
/// written here, only passed on.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

namespace gtopk {

/// Which memory an address belongs to.
struct Memory {
  /// Host memory, or the memory of a CUDA device.
  enum class Kind : std::uint8_t { kHost, kCuda };

  Kind kind = Kind::kHost;  ///< host memory by default
  std::int16_t device = 0;  ///< for kCuda: the device's index in this process

  /// Whether the core can read and write this memory.
  [[nodiscard]] constexpr bool is_host() const { return kind == Kind::kHost; }
  /// Two values are equal if kind and device are equal.
  friend constexpr bool operator==(Memory, Memory) = default;
};

/// The memory of the CUDA device with this index.
[[nodiscard]] constexpr Memory cuda_memory(std::int16_t device) {
  return {Memory::Kind::kCuda, device};
}

/// The memory as text, such as "host" or "cuda:1".
[[nodiscard]] inline std::string to_string(Memory memory) {
  return memory.is_host() ? "host" : "cuda:" + std::to_string(memory.device);
}

/// A view of contiguous bytes, like std::span, that knows which memory they are in.
template <class Byte>
class BasicBytes {
 public:
  constexpr BasicBytes() = default;
  /// Refers to `size` bytes starting at `data`.
  constexpr BasicBytes(Byte* data, std::size_t size, Memory memory = {})
      : data_(data), size_(size), memory_(memory) {}
  /// Converts from contiguous ranges in host memory.
  template <class Range>
    requires std::convertible_to<Range, std::span<Byte>>
  constexpr BasicBytes(Range&& bytes)  // NOLINT(google-explicit-constructor)
      : BasicBytes(std::span<Byte>(bytes), Memory{}) {}
  /// Converts to bytes that are only read.
  template <class Other>
    requires(std::same_as<const Other, Byte> && !std::same_as<Other, Byte>)
  constexpr BasicBytes(BasicBytes<Other> other)  // NOLINT(google-explicit-constructor)
      : BasicBytes(other.data(), other.size(), other.memory()) {}

  /// The first byte.
  [[nodiscard]] constexpr Byte* data() const { return data_; }
  /// The number of bytes.
  [[nodiscard]] constexpr std::size_t size() const { return size_; }
  /// Whether there is no byte.
  [[nodiscard]] constexpr bool empty() const { return size_ == 0; }
  /// Which memory the bytes are in.
  [[nodiscard]] constexpr Memory memory() const { return memory_; }
  /// The bytes as a span that can be read or written here. Requires host memory.
  [[nodiscard]] constexpr std::span<Byte> host() const { return {data_, size_}; }
  /// The `size` bytes starting at `begin`; requires begin + size <= this->size().
  [[nodiscard]] constexpr BasicBytes subspan(std::size_t begin, std::size_t size) const {
    return {data_ + begin, size, memory_};
  }

 private:
  constexpr BasicBytes(std::span<Byte> bytes, Memory memory)
      : BasicBytes(bytes.data(), bytes.size(), memory) {}

  Byte* data_ = nullptr;
  std::size_t size_ = 0;
  Memory memory_;
};

/// Bytes that may be written to.
using Bytes = BasicBytes<std::byte>;
/// Bytes that are only read.
using ConstBytes = BasicBytes<const std::byte>;

}  // namespace gtopk
