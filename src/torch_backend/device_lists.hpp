// Torch backend: the lists of a sparse all-reduce that stay on the device (gtopk/device_lists.hpp):
// their memory, and what the engine asks to be done with them, which a launcher's thread enqueues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gtopk/device_lists.hpp"
#include "src/cuda/calls.hpp"
#include "src/torch_backend/device_launcher.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

class DeviceLists final : public ListDevice {
 public:
  struct Numbers {
    DataType dtype = DataType::kFloat32;
    std::uint64_t d = 0;
    double divisor = 1;
  };

  /// How much pinned memory it needs.
  [[nodiscard]] static std::size_t pinned_bytes(const DeviceListRoom& room);
  /// How much memory on the device.
  [[nodiscard]] static std::size_t device_bytes(const cuda::Calls& kernels,
                                                const DeviceListRoom& room, DataType dtype);
  /// Takes memory on the device, while the caller's stream is current: it may be used from there
  /// on. `pinned` has pinned_bytes() from `begin`, a multiple of 64, on.
  DeviceLists(const cuda::Calls& kernels, c10::Device device, const DeviceListRoom& room,
              const Numbers& numbers, const at::Tensor& pinned, std::size_t begin);

  /// What the operation reads and writes.
  [[nodiscard]] const ListsOnDevice& lists() const { return lists_; }
  /// Written by the selection.
  [[nodiscard]] SelectionReport* report() const { return report_; }
  [[nodiscard]] std::uint32_t most_dropped() const { return room_.most_dropped; }
  /// What the streams of selection and commit use as well.
  [[nodiscard]] const at::Tensor& on_device() const { return memory_->on_device; }

  [[nodiscard]] Memory memory() const override;
  void close(const DeviceClosing& closing, Done done) override;
  void merge(const DeviceMerge& node, Done done) override;
  void inspect(const DeviceInspection& look, Done done) override;

 private:
  /// Apart from the call's tensors: a launcher lets it go, which must not wait for Python.
  struct Blocks {
    at::Tensor on_device;
    at::Tensor pinned;
  };

  /// enqueue(kernels, stream): some calls, up to the first that fails, the result of which it
  /// returns.
  template <class Enqueue>
  void hand_over(Enqueue enqueue, const char* what, Done done);
  [[nodiscard]] cuda::DecodeCall decoding(const CodedList& coded, const DeviceList& list,
                                          std::uint64_t* sound) const;
  [[nodiscard]] cuda::CloseCall closing_of(const DeviceClosing& closing) const;

  const cuda::Calls& kernels_;
  Launcher& launcher_;
  const c10::Device device_;
  const DeviceListRoom room_;
  const Numbers numbers_;
  std::shared_ptr<Blocks> memory_;
  std::byte* work_room_ = nullptr;
  SelectionReport* report_ = nullptr;
  ListsOnDevice lists_;
};

}  // namespace gtopk::torch_backend
