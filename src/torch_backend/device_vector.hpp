// Torch backend: the tensors of a sparse all-reduce that stay on their device, as kernels see them:
// one vector in pieces, and its residual.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gtopk/types.hpp"
#include "src/cuda/calls.hpp"
#include "src/torch_backend/device_lanes.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// The tensors of a call, on one device, and its arguments.
struct DeviceTensors {
  std::vector<at::Tensor> pieces;
  std::optional<at::Tensor> residual;
  std::optional<at::Tensor> momentum;
  /// The selector's, on the CPU.
  std::optional<at::Tensor> state;
  std::uint64_t d = 0;
  DataType dtype = DataType::kFloat32;
  /// The network takes the device's memory between all ranks.
  bool lists_may_stay = false;
  /// The result's entries are to be recorded.
  bool noted = false;
};

[[nodiscard]] inline std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

[[nodiscard]] at::Tensor bytes_on(c10::Device device, std::size_t count);

class DeviceVector {
 public:
  DeviceVector(const cuda::Calls& kernels, DeviceTensors tensors);

  /// Writes the table of pieces at byte `at` of `pinned`, which has room for one row each, and
  /// takes memory for it on the device.
  void lay_out(const at::Tensor& pinned, std::size_t at, std::uint32_t index_bytes);
  /// Copies the table to the device, on the current stream.
  void hand_over() const;

  [[nodiscard]] const cuda::VectorOf& acc() const { return acc_; }
  [[nodiscard]] const DeviceTensors& tensors() const { return tensors_; }
  [[nodiscard]] const at::Tensor& table() const { return table_; }
  [[nodiscard]] const at::Tensor& pinned() const { return pinned_; }
  [[nodiscard]] const cuda::Calls& kernels() const { return kernels_; }
  [[nodiscard]] Lanes& lanes() const { return lanes_; }

  /// Notes what the stream uses of the call.
  void in_use_on(const c10::Stream& stream) const;
  /// Keeps the pinned memory from being reused before the current stream gets here.
  void hold_pinned() const;
  /// Throws DistBackendError unless a call of the kernels was a success.
  void check(int error, const char* what) const;

 private:
  void number(cuda::PieceOf* table);

  const cuda::Calls& kernels_;
  const DeviceTensors tensors_;
  Lanes& lanes_;
  at::Tensor pinned_;
  at::Tensor table_;
  std::size_t table_at_ = 0;
  cuda::VectorOf acc_;
};

}  // namespace gtopk::torch_backend
