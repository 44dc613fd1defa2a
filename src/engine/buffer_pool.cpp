#include "src/engine/buffer_pool.hpp"

#include <algorithm>
#include <bit>

namespace gtopk::engine {
namespace {

// The kernel puts a page on the NUMA node of the thread that writes it first. That is to be the
// engine's, which is near the NIC, also where the compute thread fills the buffer.
constexpr std::size_t kTouched = 64 << 10U;
constexpr std::size_t kPage = 4096;

}  // namespace

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
  if (bytes >= kTouched) {
    for (std::size_t at = 0; at < bytes; at += kPage) {
      memory[at] = std::byte{0};
    }
  }
  return Buffer{std::unique_ptr<std::byte, Free>(memory), capacity};
}

void BufferPool::give_back(Buffer buffer) {
  std::vector<Buffer>& kept = free_[static_cast<std::size_t>(std::countr_zero(buffer.capacity))];
  if (kept.size() < std::max(kKeptPerClass, kKeptBytes / buffer.capacity)) {
    kept.push_back(std::move(buffer));
  }
}

}  // namespace gtopk::engine
