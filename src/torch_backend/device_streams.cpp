#include "src/torch_backend/device_streams.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "src/torch_backend/contiguous.hpp"

namespace gtopk::torch_backend {
namespace {

/// The number of streams on which results wait; further operations share them. Together with the
/// streams of the input and the launcher, there are fewer than a GPU's eight hardware queues.
constexpr std::size_t kResultStreams = 4;
/// The number of flags in a page.
constexpr std::int64_t kFlagsAtOnce = 1024;

std::atomic<std::uint32_t>* flags_in(const at::Tensor& page) {
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::int32_t));
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  return reinterpret_cast<std::atomic<std::uint32_t>*>(page.mutable_data_ptr<std::int32_t>());
}

}  // namespace

bool is_served(c10::Device device) {
  // Devices of another type are served if GTOPK_CUDA_DRIVER names a driver with the same interface.
  return device.is_cuda() ||
         (device.is_privateuseone() && std::getenv("GTOPK_CUDA_DRIVER") != nullptr);
}

at::Tensor host_memory(at::IntArrayRef sizes, at::ScalarType type, c10::Device copied_with) {
  const auto options = at::TensorOptions().dtype(type).device(at::kCPU);
  return at::empty(sizes, options.pinned_memory(!copied_with.is_cpu()));
}

at::Tensor staging_memory(at::IntArrayRef sizes, at::ScalarType type, c10::Device copied_with) {
  if (!copied_with.is_cpu()) {
    DeviceStreams::of(copied_with).refuse_capture();
  }
  return host_memory(sizes, type, copied_with);
}

DeviceStreams& DeviceStreams::of(c10::Device device) {
  // These are never destroyed, because their streams may wait for a flag when the process's statics
  // end.
  static std::mutex mutex;
  static auto& all =
      *std::make_unique<std::map<c10::DeviceIndex, std::unique_ptr<DeviceStreams>>>().release();
  const std::lock_guard lock(mutex);
  std::unique_ptr<DeviceStreams>& streams = all[device.index()];
  if (!streams) {
    streams = std::make_unique<DeviceStreams>(device);
  }
  return *streams;
}

DeviceStreams::DeviceStreams(c10::Device device)
    : device_(device),
      guard_(device.type()),
      driver_(device_driver()),
      reading_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      // All streams are taken together. A stream taken later could be one of these, because the
      // pool has few.
      launching_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      watch_(driver_, native(reading_), device.str(),
             [device] { device_driver().make_current(device.index()); }) {
  while (streams_.size() < kResultStreams) {
    streams_.push_back({guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)});
  }
  refuse_capture();
  streams_can_wait_ = can_wait();
}

bool DeviceStreams::can_wait() {
  const auto is_set_to_one = [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && std::string_view(value) == "1";
  };
  for (const char* const name : {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"}) {
    if (is_set_to_one(name)) {
      LOG(INFO) << "gtopk: " << name << "=1: streams of " << device_
                << " do not wait for messages, and wait() blocks the host";
      return false;
    }
  }
  const int trips = self_test_of_environment() == gpu::SelfTest::kNone ? 0 : gpu::kWaitTrips;
  Ticket probe = take_ticket();
  const c10::DeviceGuard now_current(device_);
  bool waits = true;
  try {
    gpu::test_waits(driver_, native(probe.stream), *probe.flag, probe.value, trips);
  } catch (const gpu::Failure& failure) {
    LOG(WARNING) << "gtopk: " << device_ << " (" << driver_.described(device_.index())
                 << "): " << failure.what() << "; wait() blocks the host";
    waits = false;
  }
  probe.value += static_cast<std::uint32_t>(trips);  // the flag holds this value
  redeem(probe);
  return waits;
}

void DeviceStreams::check(gpu::Driver::Result result, const char* what) const {
  TORCH_CHECK_WITH(DistBackendError, result == 0, "gtopk: the driver of ", device_, " cannot ",
                   what, ": ", driver_.name_of(result), " (", result, ")");
}

void DeviceStreams::refuse_capture() const {
  c10::Event called(device_.type());
  called.record(current());
  refuse_capture_here();
}

void DeviceStreams::refuse_capture_here() const {
  const c10::DeviceGuard now_current(device_);  // the default stream belongs to the current context
  int status = 0;
  const gpu::Driver::Result result =
      driver_.is_capturing(guard_.getStreamNativeHandle(current()), &status);
  // The legacy stream returns this error while another stream is captured.
  static constexpr gpu::Driver::Result kCapturedElsewhere = 906;
  TORCH_CHECK_NOT_IMPLEMENTED(status == 0 && result != kCapturedElsewhere,
                              "gtopk: a collective cannot be captured into a CUDA graph: the host ",
                              "sends and receives its messages. Call it outside the graph");
  check(result, "tell whether a graph is being captured");
}

void DeviceStreams::in_use_on(const at::Tensor& tensor, c10::Stream stream) const {
  guard_.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

void DeviceStreams::on_reading(const std::function<void(const c10::Stream& stream)>& give) {
  c10::Event called(device_.type());
  called.record(current());
  refuse_capture_here();
  called.block(reading_);
  const c10::StreamGuard now_current(reading_);
  give(reading_);
}

void DeviceStreams::read(const at::Tensor& to, const at::Tensor& from) {
  const BelowAutograd below;
  on_reading([&](const c10::Stream& stream) {
    to.view(-1).copy_(from.reshape(-1), /*non_blocking=*/true);
    in_use_on(from, stream);
  });
}

void DeviceStreams::call_behind_reads(std::function<void()> run) {
  auto held = std::make_unique<std::function<void()>>(std::move(run));
  const c10::DeviceGuard now_current(device_);
  const auto call = [](void* argument) {
    const std::unique_ptr<std::function<void()>> called(
        static_cast<std::function<void()>*>(argument));
    (*called)();
  };
  check(driver_.launch_host_function(guard_.getStreamNativeHandle(reading_), call, held.get()),
        "call back");
  static_cast<void>(held.release());
}

void DeviceStreams::arrive_behind_reads(const std::shared_ptr<Gate>& gate) noexcept {
  auto held = std::make_unique<std::shared_ptr<Gate>>(gate);
  const auto arrive = [](void* argument) {
    const std::unique_ptr<std::shared_ptr<Gate>> arrived(
        static_cast<std::shared_ptr<Gate>*>(argument));
    (*arrived)->arrive(true);
  };
  const gpu::Driver::Result result =
      driver_.launch_host_function(guard_.getStreamNativeHandle(reading_), arrive, held.get());
  if (result == 0) {
    static_cast<void>(held.release());
    return;
  }
  LOG(ERROR) << "gtopk: the driver of " << device_
             << " cannot call back: " << driver_.name_of(result) << " (" << result << ")";
  gate->arrive(false);
}

DeviceStreams::Ticket DeviceStreams::take_ticket() {
  std::unique_lock lock(mutex_);
  while (free_flags_.empty()) {
    // The driver is never called with the mutex held: it may wait for a result, while the engine's
    // thread waits for the mutex.
    lock.unlock();
    const at::Tensor page = host_memory({kFlagsAtOnce}, at::kInt, device_);
    std::atomic<std::uint32_t>* const flags = flags_in(page.zero_());
    lock.lock();
    pages_.push_back(page);
    for (std::int64_t flag = 0; flag < kFlagsAtOnce; ++flag) {
      free_flags_.push_back({flags + flag, 0});
    }
  }
  const auto least = std::ranges::min_element(streams_, {}, &ResultStream::operations);
  ++least->operations;
  const Flag flag = free_flags_.back();
  free_flags_.pop_back();
  return {flag.number, flag.last + 1, least->stream,
          static_cast<std::size_t>(least - streams_.begin())};
}

void DeviceStreams::redeem(const Ticket& ticket) noexcept {
  // Later waiters find this number, or a greater one.
  ticket.flag->store(ticket.value, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  --streams_[ticket.number].operations;
  free_flags_.push_back({ticket.flag, ticket.value});
}

void DeviceStreams::wait_for(const Ticket& ticket) {
  const c10::DeviceGuard now_current(device_);
  check(driver_.wait_value(guard_.getStreamNativeHandle(ticket.stream),
                           reinterpret_cast<std::uint64_t>(ticket.flag), ticket.value, 0),
        "let a stream wait for a number in memory");
}

}  // namespace gtopk::torch_backend
