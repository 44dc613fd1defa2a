// Engine: what a group has done since it was made. Written by the engine thread, readable from any.
#pragma once

#include <atomic>
#include <cstdint>

namespace gtopk::engine {

/// Messages and bytes are those of operations (headers included); notices between engines are
/// counted apart.
struct Counters {
  std::atomic<std::uint64_t> operations{0};
  std::atomic<std::uint64_t> messages_sent{0};
  std::atomic<std::uint64_t> messages_received{0};
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> bytes_received{0};
  std::atomic<std::uint64_t> notices_sent{0};
  std::atomic<std::uint64_t> compress_nanoseconds{0};
  std::atomic<std::uint64_t> exchange_nanoseconds{0};
  std::atomic<std::uint64_t> commit_nanoseconds{0};
  std::atomic<std::uint32_t> in_flight{0};
  std::atomic<std::uint32_t> most_in_flight{0};
};

}  // namespace gtopk::engine
