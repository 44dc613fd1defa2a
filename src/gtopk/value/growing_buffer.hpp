// Sparse, value: uninitialised storage that keeps its largest size, so that the second call of the
// same shape allocates nothing. It does not know types.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace gtopk::sparse {

class GrowingBuffer {
 public:
  /// Returns memory for `count` elements of T, aligned to a cache line; growing it discards the
  /// contents.
  template <class T>
  [[nodiscard]] T* array(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes > size_) {
      // The old block is freed first, so that two large ones need not exist at once.
      block_.reset();
      size_ = 0;
      block_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
      size_ = bytes;
    }
    return reinterpret_cast<T*>(block_.get());
  }

 private:
  static constexpr std::align_val_t kAlignment{64};

  struct Free {
    void operator()(std::byte* block) const { ::operator delete(block, kAlignment); }
  };

  std::unique_ptr<std::byte, Free> block_;
  std::size_t size_ = 0;
};

}  // namespace gtopk::sparse
