// Sparse, device: divides one block of memory among several uses, which it does not know.
#pragma once

#include <cstddef>

namespace gtopk::sparse::device {

/// Allocates parts from an address on, aligned like memory from cudaMalloc. From null, it only
/// measures.
class Arena {
 public:
  explicit Arena(std::byte* begin) : begin_(begin) {}

  template <class T>
  [[nodiscard]] T* take(std::size_t count) {
    const std::size_t at = taken_;
    taken_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return begin_ == nullptr ? nullptr : reinterpret_cast<T*>(begin_ + at);
  }
  [[nodiscard]] std::size_t taken() const { return taken_; }

 private:
  static constexpr std::size_t kAlignment = 256;

  std::byte* begin_;
  std::size_t taken_ = 0;
};

}  // namespace gtopk::sparse::device
