// Engine: memory for messages, kept between operations so that the steady state neither allocates
// nor faults pages. Engine thread only.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace gtopk::engine {

class BufferPool {
 public:
  static constexpr std::size_t kAlignment = 64;

  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete(memory, std::align_val_t{kAlignment});
    }
  };
  struct Buffer {
    std::unique_ptr<std::byte, Free> memory;
    std::size_t capacity = 0;
  };

  /// At least `bytes`, aligned to kAlignment, contents undefined.
  [[nodiscard]] Buffer take(std::size_t bytes);
  void give_back(Buffer buffer);

  /// How often take() had to allocate.
  [[nodiscard]] std::size_t allocations() const { return allocations_; }

 private:
  static constexpr std::size_t kClasses = 48;
  static constexpr std::size_t kKeptPerClass = 16;
  static constexpr std::size_t kKeptBytes = std::size_t{1} << 20U;  ///< or as many as fit into this
  std::array<std::vector<Buffer>, kClasses> free_;                  // by log2 of the capacity
  std::size_t allocations_ = 0;
};

}  // namespace gtopk::engine
