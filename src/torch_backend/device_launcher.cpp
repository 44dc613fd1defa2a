#include "src/torch_backend/device_launcher.hpp"

#include <map>
#include <memory>
#include <mutex>

#include "src/torch_backend/device_streams.hpp"

namespace gtopk::torch_backend {

gpu::Launcher& launcher_of(c10::Device device) {
  static std::mutex mutex;
  // This is never destroyed, because there is no device any more when the process's statics end.
  static auto& all =
      *std::make_unique<std::map<c10::DeviceIndex, std::unique_ptr<gpu::Launcher>>>().release();
  const std::lock_guard lock(mutex);
  std::unique_ptr<gpu::Launcher>& launcher = all[device.index()];
  if (!launcher) {
    DeviceStreams& streams = DeviceStreams::of(device);
    launcher = std::make_unique<gpu::Launcher>(
        device_driver(), streams.native(streams.launching()), device.str(),
        [device] { c10::impl::VirtualGuardImpl(device.type()).setDevice(device); },
        streams.watch());
  }
  return *launcher;
}

}  // namespace gtopk::torch_backend
