#include "src/torch_backend/device_call.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace gtopk::torch_backend {
namespace {

bool blocking_wait() {
  const char* const said = std::getenv("GTOPK_BLOCKING_WAIT");
  const std::string_view value = said != nullptr ? said : "";
  TORCH_CHECK_VALUE(value.empty() || value == "0" || value == "1",
                    "gtopk: GTOPK_BLOCKING_WAIT must be 0 or 1, given '", value, "'");
  return value == "1";
}

/// The device's streams; taking a ticket may allocate memory.
DeviceStreams& outside_of_captures(c10::Device device) {
  DeviceStreams& streams = DeviceStreams::of(device);
  streams.refuse_capture();
  return streams;
}

}  // namespace

void UnseenError::note(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) {
    error_ = std::move(error);
  }
}

void UnseenError::raise() {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = std::exchange(error_, nullptr);
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

void UnseenError::forget(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (error_ == error) {
    error_ = nullptr;
  }
}

std::unique_ptr<DeviceCall> DeviceCall::of(const std::vector<at::Tensor>& inputs,
                                           const std::vector<Contiguous>& memory,
                                           const std::vector<at::Tensor>& results) {
  std::optional<c10::Device> device;
  const auto look = [&](const at::Tensor& tensor) {
    if (!device) {
      device = tensor.device();
    }
    TORCH_CHECK_VALUE(tensor.device() == *device, "gtopk: an operation takes tensors of one ",
                      "device, given some on ", *device, " and ", tensor.device());
  };
  for (const at::Tensor& each : inputs) {
    look(each);
  }
  for (const at::Tensor& each : results) {
    look(each);
  }
  for (const Contiguous& each : memory) {
    if (!device) {
      device = each.tensor.device();
    }
  }
  if (!device || device->is_cpu()) {
    return nullptr;
  }
  return std::make_unique<DeviceCall>(*device);
}

DeviceCall::DeviceCall(c10::Device device)
    : streams_(outside_of_captures(device)),
      copying_(!blocking_wait() && streams_.may_wait() ? Copying::kOpen : Copying::kLate),
      ticket_(streams_.take_ticket()),
      called_(device.type()),
      written_(device.type()) {
  try {
    called_.record(streams_.current());
  } catch (...) {
    streams_.redeem(ticket_);
    throw;
  }
}

DeviceCall::~DeviceCall() {
  if (!redeemed_) {
    redeem();  // the operation was never queued
  }
}

void DeviceCall::works_meanwhile() {
  copy_late();
  works_ = true;
  streams_.works();
}

void DeviceCall::watch(gpu::Watch::Failed failed) {
  watched_ = streams_.watch().expect(std::move(failed));
}

void DeviceCall::redeem() noexcept {
  redeemed_ = true;
  if (watched_) {
    streams_.watch().forget(*watched_);
  }
  streams_.redeem(ticket_);
  if (works_) {
    streams_.works_no_more();
  }
}

void DeviceCall::begin() {
  c10::OptionalDeviceGuard now_current;
  try {
    now_current.reset_device(streams_.device());
    if (also_read_) {
      also_read_();
    }
  } catch (...) {
    input_->arrive(false);
    throw;
  }
  streams_.arrive_behind_reads(input_);
}

void DeviceCall::write_ahead(const std::vector<Contiguous>& memory) {
  called_.block(stream());
  streams_.wait_for(ticket_);
  write(memory);
  enqueued_ = true;
}

bool DeviceCall::await(const std::vector<Contiguous>& memory) {
  Copying open = Copying::kOpen;
  if (streams_.may_wait()) {
    copying_.compare_exchange_strong(open, Copying::kAhead);
  }
  if (!copies_ahead()) {
    return false;
  }
  const std::lock_guard lock(enqueuing_);
  if (!enqueued_) {
    const c10::DeviceGuard now_current(streams_.device());
    write_ahead(memory);
  }
  return true;
}

bool DeviceCall::close_copying() noexcept {
  Copying open = Copying::kOpen;
  copying_.compare_exchange_strong(open, Copying::kLate);
  return copies_ahead();
}

void DeviceCall::copy_back(const std::vector<Contiguous>& memory) {
  called_.block(stream());
  write(memory);
}

void DeviceCall::write(const std::vector<Contiguous>& memory) {
  const BelowAutograd below;
  const c10::Stream writing = stream();
  const c10::StreamGuard on_writing(writing);
  if (also_write_) {
    also_write_(writing);
  }
  for (const Contiguous& each : memory) {
    if (!each.is_staged()) {
      continue;
    }
    each.tensor.copy_(each.memory, /*non_blocking=*/true);
    streams_.in_use_on(each.tensor, writing);
  }
  written_.record(writing);
}

void DeviceCall::ended() noexcept { redeem(); }

void DeviceCall::block_current_stream() const { written_.block(streams_.current()); }

bool DeviceCall::has_results() const { return (!copies_ahead() || enqueued_) && written_.query(); }

}  // namespace gtopk::torch_backend
