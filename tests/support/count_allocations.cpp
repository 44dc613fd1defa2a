#include "tests/support/count_allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

// What operator new is made of cannot use operator new.
// NOLINTBEGIN(cppcoreguidelines-owning-memory,cppcoreguidelines-no-malloc)
namespace {

std::atomic<std::size_t> count{0};
thread_local bool counting = true;

void* allocate(std::size_t size, std::size_t alignment) {
  if (counting) {
    count.fetch_add(1, std::memory_order_relaxed);
  }
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

namespace gtopk::support {

std::size_t allocations() { return count.load(std::memory_order_relaxed); }

Counting::Counting(bool on) : before_(std::exchange(counting, on)) {}
Counting::~Counting() { counting = before_; }

}  // namespace gtopk::support

void* operator new(std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
// NOLINTEND(cppcoreguidelines-owning-memory,cppcoreguidelines-no-malloc)
