#include "src/gpu/self_test_run.hpp"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

namespace gtopk::gpu {
namespace {

std::byte* allocate(const Driver& driver, std::size_t bytes) {
  std::uint64_t address = 0;
  driver.check(driver.allocate(&address, bytes), fmt::format("allocate {} bytes of memory", bytes));
  return reinterpret_cast<std::byte*>(address);
}

void release(const Driver& driver, std::byte* memory) {
  static_cast<void>(driver.release(reinterpret_cast<std::uint64_t>(memory)));
}

}  // namespace

Driver::Result end_of(const Driver& driver, Driver::Stream stream,
                      std::chrono::milliseconds limit) {
  constexpr std::chrono::microseconds kPoll{20};
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const Driver::Result result = driver.query_stream(stream);
    if (result != Driver::kNotReady || std::chrono::steady_clock::now() >= deadline) {
      return result;
    }
    std::this_thread::sleep_for(kPoll);
  }
}

SelfTestRun::SelfTestRun(const Driver& driver, const cuda::Calls& kernels, Driver::Stream stream,
                         std::size_t mirrored, std::size_t pinned, std::chrono::milliseconds limit)
    : driver_(driver),
      kernels_(kernels),
      stream_(stream),
      limit_(limit),
      mirrored_size_(mirrored),
      pinned_size_(pinned) {
  device_ = allocate(driver, mirrored);
  void* memory = nullptr;
  const Driver::Result result = driver.allocate_pinned(&memory, mirrored + pinned, 0);
  if (result != 0) {
    release(driver, device_);
    driver.check(result, fmt::format("allocate {} bytes of pinned memory", mirrored + pinned));
  }
  pinned_ = static_cast<std::byte*>(memory);
}

SelfTestRun::~SelfTestRun() {
  if (stuck_) {
    return;  // the device may still write to this memory
  }
  static_cast<void>(driver_.release_pinned(pinned_));
  release(driver_, device_);
  if (scratch_ != nullptr) {
    release(driver_, scratch_);
  }
}

void SelfTestRun::begin(std::string name) {
  name_ = std::move(name);
  mirrored_taken_ = pinned_taken_ = 0;
  failed_ = false;
  ++report_.calls;
}

std::size_t SelfTestRun::take(std::size_t bytes, std::size_t& taken, std::size_t size) {
  constexpr std::size_t kLine = 64;
  const std::size_t at = taken;
  taken += (bytes + kLine - 1) / kLine * kLine;
  if (taken > size) {
    throw std::logic_error("a call of the self-test takes more memory than it declared");
  }
  return at;
}

void* SelfTestRun::scratch(std::size_t bytes) {
  if (bytes > scratch_size_) {
    if (scratch_ != nullptr) {
      release(driver_, std::exchange(scratch_, nullptr));
      scratch_size_ = 0;
    }
    constexpr std::size_t kLeast = std::size_t{1} << 20U;
    const std::size_t size = std::max(2 * bytes, kLeast);  // otherwise it would grow repeatedly
    scratch_ = allocate(driver_, size);
    scratch_size_ = size;
  }
  return scratch_;
}

void SelfTestRun::copy_in() {
  if (mirrored_taken_ == 0) {
    return;
  }
  driver_.check(
      driver_.copy_in(reinterpret_cast<std::uint64_t>(device_), pinned_, mirrored_taken_, stream_),
      "copy to the GPU");
}

bool SelfTestRun::finish(int error) {
  if (error != 0) {
    fail(fmt::format("expected success, seen {} ({})", kernels_.error_name(error), error));
  }
  const Driver::Result copied =
      mirrored_taken_ == 0 ? 0
                           : driver_.copy_out(pinned_, reinterpret_cast<std::uint64_t>(device_),
                                              mirrored_taken_, stream_);
  wait();
  driver_.check(copied, "copy from the GPU");
  return error == 0;
}

void SelfTestRun::wait() {
  const Driver::Result result = end_of(driver_, stream_, limit_);
  if (result == 0) {
    return;
  }
  stuck_ = true;
  fail(result == Driver::kNotReady
           ? fmt::format("expected to end within {} ms, still running", limit_.count())
           : fmt::format("expected success, seen {} ({})", driver_.name_of(result), result));
  throw Stuck(report_.failures.back());
}

void SelfTestRun::compare(std::string_view what, const void* seen, const void* expected,
                          std::size_t count, std::size_t width, std::size_t from) {
  if (count == 0 || std::memcmp(seen, expected, count * width) == 0) {
    return;
  }
  const auto bits_at = [width](const void* all, std::size_t i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, static_cast<const std::byte*>(all) + i * width, width);
    return bits;
  };
  std::size_t i = 0;
  while (bits_at(seen, i) == bits_at(expected, i)) {
    ++i;
  }
  const auto digits = 2 + 2 * width;
  fail(fmt::format("{} {}: expected {:#0{}x}, seen {:#0{}x}", what, from + i, bits_at(expected, i),
                   digits, bits_at(seen, i), digits));
}

void SelfTestRun::fail(const std::string& why) {
  if (!std::exchange(failed_, true)) {
    report_.failures.push_back(fmt::format("{}: {}", name_, why));
  }
}

}  // namespace gtopk::gpu
