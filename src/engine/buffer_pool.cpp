#include "src/engine/buffer_pool.hpp"

#include <algorithm>
#include <bit>

namespace gtopk::engine {
namespace {

// The kernel puts a page on the NUMA node of the thread that first writes it. The engine's thread
// should write first, because it is near the NIC, even if the compute thread fills the buffer.
constexpr std::size_t kTouched = 64 << 10U;
constexpr std::size_t kPage = 4096;

/// The most buffers of one size that are kept: a single small buffer may keep a page from being
/// returned to the kernel.
constexpr std::size_t kMostPerClass = 256;

}  // namespace

BufferPool::Buffer BufferPool::take(std::size_t bytes) {
  const std::size_t capacity = std::bit_ceil(std::max(bytes, kAlignment));
  taken_bytes_ += capacity;
  if (++taken_ % kLookAfter == 0) {
    free_idle();
  }
  const auto number = static_cast<std::size_t>(std::countr_zero(capacity));
  if (number < kClasses && !classes_[number].kept.empty()) {
    Class& of_size = classes_[number];
    Buffer buffer = std::move(of_size.kept.back());
    of_size.kept.pop_back();
    of_size.idle = std::min(of_size.idle, of_size.kept.size());
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
  taken_bytes_ -= buffer.capacity;
  const auto number = static_cast<std::size_t>(std::countr_zero(buffer.capacity));
  if (number >= kClasses) {
    return;
  }
  std::vector<Buffer>& kept = classes_[number].kept;
  if (kept.size() < std::clamp(kKeptBytes / buffer.capacity, kKeptPerClass, kMostPerClass)) {
    kept.push_back(std::move(buffer));
  }
}

std::size_t BufferPool::kept_bytes() const {
  std::size_t bytes = 0;
  for (const Class& of_size : classes_) {
    for (const Buffer& buffer : of_size.kept) {
      bytes += buffer.capacity;
    }
  }
  return bytes;
}

void BufferPool::free_idle() {
  for (Class& of_size : classes_) {
    // The last buffer returned is the next one taken, so idle buffers are at the front.
    const auto begin = of_size.kept.begin();
    of_size.kept.erase(begin, begin + static_cast<std::ptrdiff_t>(of_size.idle));
    of_size.idle = of_size.kept.size();
  }
}

}  // namespace gtopk::engine
