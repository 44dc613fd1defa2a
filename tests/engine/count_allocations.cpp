#include "tests/engine/count_allocations.hpp"

#include <cstdlib>
#include <new>
#include <utility>

namespace {

std::size_t count = 0;
bool counting = false;

void* allocate(std::size_t size, std::size_t alignment) {
  if (counting) {
    ++count;
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

std::size_t allocations() { return count; }
void reset_allocations() { count = 0; }

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
