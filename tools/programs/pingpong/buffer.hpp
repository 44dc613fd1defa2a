// gtopk-pingpong: what messages are sent from and received into: the host's memory, or a GPU's. A
// GPU's goes through pinned memory, as with tensors (docs/devices.md), or to the network as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gtopk/memory.hpp"
#include "tools/programs/gpu.hpp"

namespace gtopk::programs::pingpong {

/// One message's bytes. Slots number the messages that are in flight at once: they have equal
/// bytes, so that slots share all but pinned memory.
class MessageBuffer {
 public:
  /// gpu: null for the host's memory. in_place: the network gets the GPU's.
  MessageBuffer(const Gpu* gpu, std::uint64_t bytes, std::uint32_t slots, bool in_place);

  /// What the host writes before store(), and reads after fetch(): a copy, if a GPU has the bytes.
  [[nodiscard]] std::span<std::byte> content() const;
  void store() const;
  void fetch() const;

  /// What to send; copied from the GPU first, which this waits for.
  [[nodiscard]] ConstBytes outgoing(std::uint32_t slot) const;
  /// Where to receive.
  [[nodiscard]] Bytes incoming(std::uint32_t slot) const;
  /// Messages were received in the first so many slots: copies them to the GPU, and waits for it.
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
