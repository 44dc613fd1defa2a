// Torch backend: what reads acc of a tensor on a device while an operation runs
// (gtopk/device_acc.hpp): each request is a call of the kernels, which the launcher of the device
// enqueues.
#pragma once

#include <cstdint>

#include "gtopk/device_acc.hpp"
#include "src/torch_backend/device_vector.hpp"

namespace gtopk::torch_backend {

class AccKernels final : public AccDevice {
 public:
  /// The vector was laid out, and outlives this. Takes memory on the device, for a sketch.
  AccKernels(const DeviceVector& vector, const AccRoom& room);

  void accumulate(void* to, Done done) override;
  void gather(const DeviceGather& wanted, Done done) override;
  void sketch(const DeviceSketch& wanted, Done done) override;
  void find(const DeviceFind& wanted, Done done) override;

 private:
  template <class Call>
  void hand_over(Call call, int (*kernel)(const Call&, void*), const char* what, Done done) const;

  const DeviceVector& vector_;
  at::Tensor sketch_room_;  ///< undefined where there is no sketch
};

}  // namespace gtopk::torch_backend
