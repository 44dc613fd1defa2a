// GPU room: what the engine asks to be done with lists that stay on a device
// (gtopk/device_lists.hpp): each request is calls of the kernels, which a launcher enqueues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "gtopk/device_lists.hpp"
#include "src/cuda/calls.hpp"
#include "src/gpu/launcher.hpp"

namespace gtopk::gpu {

/// The blocks of memory of a step, which somebody else owns.
struct StepMemory {
  std::byte* pinned = nullptr;
  std::byte* device = nullptr;
  std::int16_t ordinal = 0;  ///< of the device
  /// Owns both; a launcher lets it go.
  std::shared_ptr<void> owner;
};

class ListKernels final : public ListDevice {
 public:
  struct Numbers {
    DataType dtype = DataType::kFloat32;
    std::uint64_t d = 0;
    double divisor = 1;
    std::uint32_t index_bytes = 4;
  };

  /// Of one merge, decoding or closing at a time.
  [[nodiscard]] static std::size_t work_bytes(const cuda::Calls& kernels,
                                              const DeviceListRoom& room, DataType dtype);
  /// `work`: work_bytes() of the device's memory.
  ListKernels(const cuda::Calls& kernels, Launcher& launcher, const Numbers& numbers,
              const StepMemory& memory, std::byte* work)
      : kernels_(kernels), launcher_(launcher), numbers_(numbers), memory_(memory), work_(work) {}

  [[nodiscard]] Memory memory() const override { return cuda_memory(memory_.ordinal); }
  void close(const DeviceClosing& closing, Done done) override;
  void merge(const DeviceMerge& node, Done done) override;
  void inspect(const DeviceInspection& look, Done done) override;

 private:
  /// enqueue(kernels, stream): some calls, up to the first that fails, the result of which it
  /// returns.
  template <class Enqueue>
  void hand_over(Enqueue enqueue, const char* what, Done done);
  [[nodiscard]] cuda::DecodeCall decoding(const CodedList& coded, const DeviceList& list,
                                          std::uint64_t* sound) const;
  [[nodiscard]] cuda::CloseCall closing_of(const DeviceClosing& closing) const;

  const cuda::Calls& kernels_;
  Launcher& launcher_;
  const Numbers numbers_;
  const StepMemory memory_;
  std::byte* const work_;
};

}  // namespace gtopk::gpu
