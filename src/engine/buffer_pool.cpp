#include "src/engine/buffer_pool.hpp"

#include <algorithm>
#include <bit>

namespace gtopk::engine {

BufferPool::Buffer BufferPool::take(std::size_t bytes) {
  const std::size_t capacity = std::bit_ceil(std::max(bytes, kAlignment));
  std::vector<Buffer>& kept = free_[static_cast<std::size_t>(std::countr_zero(capacity))];
  if (!kept.empty()) {
    Buffer buffer = std::move(kept.back());
    kept.pop_back();
    return buffer;
  }
  ++allocations_;
  auto* const memory =
      static_cast<std::byte*>(::operator new(capacity, std::align_val_t{kAlignment}));
  return Buffer{std::unique_ptr<std::byte, Free>(memory), capacity};
}

void BufferPool::give_back(Buffer buffer) {
  std::vector<Buffer>& kept = free_[static_cast<std::size_t>(std::countr_zero(buffer.capacity))];
  if (kept.size() < std::max(kKeptPerClass, kKeptBytes / buffer.capacity)) {
    kept.push_back(std::move(buffer));
  }
}

}  // namespace gtopk::engine
