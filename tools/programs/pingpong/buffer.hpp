// gtopk-pingpong: the memory that messages are sent from and received into, the host's or a GPU's.
// A GPU's goes through pinned memory, as with tensors (docs/devices.md), or directly to the
// network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gtopk/memory.hpp"
#include "tools/programs/gpu.hpp"

namespace gtopk::programs::pingpong {

/// One message's bytes. Slots number the messages that are in flight at once. These have equal
/// bytes, so slots share all but pinned memory.
class MessageBuffer {
 public:
  /// gpu: null for the host's memory. in_place: the network gets the GPU's memory.
  MessageBuffer(const Gpu* gpu, std::uint64_t bytes, std::uint32_t slots, bool in_place);

  /// What the host writes before store(), and reads after fetch(): it is a copy if a GPU has the
  /// bytes.
  [[nodiscard]] std::span<std::byte> content() const;
  void store() const;
  void fetch() const;

  /// What to send. If it is copied from the GPU first, this waits for the copy.
  [[nodiscard]] ConstBytes outgoing(std::uint32_t slot) const;
  /// Where to receive.
  [[nodiscard]] Bytes incoming(std::uint32_t slot) const;
  /// Call it when messages were received in the first `slots` slots: copies them to the GPU, and
  /// waits for that.
  void arrived(std::uint32_t slots) const;

 private:
  [[nodiscard]] std::byte* pinned(std::uint32_t slot) const;

  const Gpu* gpu_;
  std::uint64_t bytes_;
  bool in_place_;
  std::unique_ptr<std::vector<std::byte>> host_;  // without a GPU
  std::unique_ptr<GpuMemory> device_;
  std::unique_ptr<PinnedMemory> pinned_;  // content(), then the slots
};

}  // namespace gtopk::programs::pingpong
