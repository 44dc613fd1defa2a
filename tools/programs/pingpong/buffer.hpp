// gtopk-pingpong: the memory from which messages are sent and into which they are received, the
// host's or a GPU's. A GPU's memory goes through pinned memory, as with tensors (docs/devices.md),
// or directly to the network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gtopk/memory.hpp"
#include "tools/programs/gpu.hpp"

namespace gtopk::programs::pingpong {

/// One message's bytes. Slots number the messages that are in flight at once. These messages have
/// equal bytes, so slots share all memory except pinned memory.
class MessageBuffer {
 public:
  /// Allocates the memory. `gpu` is null for host memory. With `in_place`, the network gets the
  /// GPU's memory.
  MessageBuffer(const Gpu* gpu, std::uint64_t bytes, std::uint32_t slots, bool in_place);

  /// The bytes that the host writes before store() and reads after fetch(). They are a copy if a
  /// GPU has the bytes.
  [[nodiscard]] std::span<std::byte> content() const;
  void store() const;
  void fetch() const;

  /// Returns the bytes to send. If they are copied from the GPU first, this waits for the copy.
  [[nodiscard]] ConstBytes outgoing(std::uint32_t slot) const;
  /// Returns the memory in which to receive.
  [[nodiscard]] Bytes incoming(std::uint32_t slot) const;
  /// Must be called when messages were received in the first `slots` slots. Copies them to the GPU,
  /// and waits for the copies.
  void arrived(std::uint32_t slots) const;

 private:
  [[nodiscard]] std::byte* pinned(std::uint32_t slot) const;

  const Gpu* gpu_;
  std::uint64_t bytes_;
  bool in_place_;
  std::unique_ptr<std::vector<std::byte>> host_;  // used without a GPU
  std::unique_ptr<GpuMemory> device_;
  std::unique_ptr<PinnedMemory> pinned_;  // content(), then the slots
};

}  // namespace gtopk::programs::pingpong
