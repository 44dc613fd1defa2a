#include "tools/programs/pingpong/buffer.hpp"

#include <algorithm>

namespace gtopk::programs::pingpong {

MessageBuffer::MessageBuffer(const Gpu* gpu, std::uint64_t bytes, std::uint32_t slots,
                             bool in_place)
    : gpu_(gpu), bytes_(bytes), in_place_(in_place) {
  if (gpu_ == nullptr) {
    host_ = std::make_unique<std::vector<std::byte>>(bytes, std::byte{'g'});
    return;
  }
  device_ = std::make_unique<GpuMemory>(*gpu_, bytes);
  pinned_ = std::make_unique<PinnedMemory>(*gpu_, bytes * (in_place ? 1 : 1 + slots));
  std::ranges::fill(content(), std::byte{'g'});
  store();
}

std::byte* MessageBuffer::pinned(std::uint32_t slot) const {
  return pinned_->bytes().data() + bytes_ * (1 + slot);
}

std::span<std::byte> MessageBuffer::content() const {
  return gpu_ == nullptr ? std::span(*host_) : pinned_->bytes().first(bytes_);
}

void MessageBuffer::store() const {
  if (gpu_ != nullptr) {
    gpu_->copy_in(device_->data(), content().data(), bytes_);
    gpu_->synchronize();
  }
}

void MessageBuffer::fetch() const {
  if (gpu_ != nullptr) {
    gpu_->copy_out(content().data(), device_->data(), bytes_);
    gpu_->synchronize();
  }
}

ConstBytes MessageBuffer::outgoing(std::uint32_t slot) const {
  if (gpu_ != nullptr && !in_place_) {
    gpu_->copy_out(pinned(slot), device_->data(), bytes_);
    gpu_->synchronize();
  }
  return incoming(slot);
}

Bytes MessageBuffer::incoming(std::uint32_t slot) const {
  if (gpu_ == nullptr) {
    return content();
  }
  if (in_place_) {
    return {static_cast<std::byte*>(device_->data()), bytes_, gpu_->memory()};
  }
  return {pinned(slot), bytes_};
}

void MessageBuffer::arrived(std::uint32_t slots) const {
  if (gpu_ == nullptr || in_place_) {
    return;
  }
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    gpu_->copy_in(device_->data(), pinned(slot), bytes_);
  }
  gpu_->synchronize();
}

}  // namespace gtopk::programs::pingpong
