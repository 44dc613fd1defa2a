#include "src/torch_backend/acc_kernels.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "src/torch_backend/device_launcher.hpp"

namespace gtopk::torch_backend {

AccKernels::AccKernels(const DeviceVector& vector, const AccRoom& room) : vector_(vector) {
  if (room.columns != 0) {
    const DeviceTensors& tensors = vector.tensors();
    const std::size_t bytes = vector.kernels().sketch_room(
        accumulation_type(tensors.dtype), room.columns, tensors.d, room.candidates);
    sketch_room_ = bytes_on(vector.lanes().device(), bytes);
  }
}

template <class Call>
void AccKernels::hand_over(Call call, int (*kernel)(const Call&, void*), const char* what,
                           Done done) const {
  const c10::Device device = vector_.lanes().device();
  // What the call uses besides the tensors, which the operation keeps. This may be gone by then.
  const auto memory =
      std::make_shared<std::vector<at::Tensor>>(std::vector{vector_.table(), vector_.pinned()});
  if (sketch_room_.defined()) {
    memory->push_back(sketch_room_);
  }
  const auto launch = [call, kernel, what, device, memory,
                       &kernels = vector_.kernels()](const c10::Stream& stream) {
    const Lanes& lanes = Lanes::of(device);
    for (const at::Tensor& each : *memory) {
      if (each.device() == device) {
        lanes.in_use_on(each, stream);
      }
    }
    const int error = kernel(call, lanes.native(stream));
    TORCH_CHECK_WITH(DistBackendError, error == 0, "gtopk: ", device, " cannot ", what, ": ",
                     kernels.error_name(error), " (", error, ")");
  };
  Launcher::of(device).run({launch, std::move(done), memory});
}

void AccKernels::accumulate(void* to, Done done) {
  hand_over(cuda::AccumulateCall{vector_.acc(), to}, vector_.kernels().accumulate, "accumulate",
            std::move(done));
}

void AccKernels::gather(const DeviceGather& wanted, Done done) {
  const cuda::GatherCall call{vector_.acc(), wanted.indices, wanted.count, wanted.values,
                              wanted.finite};
  hand_over(call, vector_.kernels().gather, "gather", std::move(done));
}

void AccKernels::sketch(const DeviceSketch& wanted, Done done) {
  cuda::SketchCall call;
  call.acc = vector_.acc();
  call.seed = wanted.seed;
  call.columns = wanted.columns;
  call.room = bytes_of(sketch_room_);
  call.cells = wanted.cells;
  hand_over(call, vector_.kernels().sketch, "sketch", std::move(done));
}

void AccKernels::find(const DeviceFind& wanted, Done done) {
  cuda::FindCall call;
  call.values = accumulation_type(vector_.tensors().dtype);
  call.index_bytes = vector_.acc().index_bytes;
  call.d = vector_.tensors().d;
  call.seed = wanted.seed;
  call.columns = wanted.columns;
  call.cells = wanted.cells;
  call.most = wanted.most;
  call.room = bytes_of(sketch_room_);
  call.heaviest = {wanted.heaviest.indices, wanted.heaviest.values, wanted.most};
  call.report = wanted.report;
  hand_over(call, vector_.kernels().find, "find what is heavy", std::move(done));
}

}  // namespace gtopk::torch_backend
