// Engine: memory for messages, kept between operations so that the steady state neither allocates
// nor faults pages. Memory that has not been needed for a long time is freed; otherwise, with sizes
// that keep changing, each size would hold the most that it ever needed. Engine thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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

  /// Returns at least `bytes` bytes, aligned to kAlignment, with undefined contents.
  [[nodiscard]] Buffer take(std::size_t bytes);
  void give_back(Buffer buffer);

  /// How often take() had to allocate.
  [[nodiscard]] std::size_t allocations() const { return allocations_; }
  /// Bytes that operations hold now.
  [[nodiscard]] std::size_t taken_bytes() const { return taken_bytes_; }
  /// Bytes that are kept for the next operations.
  [[nodiscard]] std::size_t kept_bytes() const;

  /// After this many calls of take(), buffers that were unused throughout are freed.
  static constexpr std::uint32_t kLookAfter = 16384;

 private:
  /// Buffers of one size; larger buffers than the last class holds are not kept.
  struct Class {
    std::vector<Buffer> kept;
    std::size_t idle = 0;  ///< the fewest kept buffers at any time since the last check
  };

  void free_idle();

  static constexpr std::size_t kClasses = 36;
  static constexpr std::size_t kKeptPerClass = 16;
  static constexpr std::size_t kKeptBytes = std::size_t{1} << 20U;  ///< or as many as fill this
  std::array<Class, kClasses> classes_;                             // by log2 of capacity
  std::uint32_t allocations_ = 0;
  std::uint32_t taken_ = 0;
  std::size_t taken_bytes_ = 0;
};

}  // namespace gtopk::engine
