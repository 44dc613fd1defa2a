#include "tools/programs/gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace gtopk::programs {

namespace {

/// Runs the call; a failure of the driver becomes an error of --memory cuda.
template <class Call>
decltype(auto) of_memory(const Call& call) {
  try {
    return call();
  } catch (const gpu::Failure& failure) {
    throw std::runtime_error(fmt::format("--memory cuda: {}", failure.what()));
  }
}

void check(const gpu::Driver& driver, int result, const std::string& what) {
  of_memory([&] { driver.check(result, what); });
}

}  // namespace

std::string kernels_folder() {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (program.parent_path().parent_path().parent_path() / "gtopk").string();
}

void add_memory(CLI::App& app, std::string& memory) {
  app.add_option("-m,--memory", memory, "where the data is: host, or cuda: on a GPU")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
}

Gpu::Gpu(std::uint32_t number)
    : driver_(&of_memory([]() -> const gpu::Driver& { return gpu::Driver::get(); })) {
  check(*driver_, driver_->init(0), "start");
  int count = 0;
  check(*driver_, driver_->device_count(&count), "count the GPUs");
  if (count < 1) {
    throw std::runtime_error("--memory cuda: the driver sees no GPU");
  }
  const int ordinal = static_cast<int>(number % static_cast<std::uint32_t>(count));
  check(*driver_, driver_->device_of(&device_, ordinal), fmt::format("find GPU {}", ordinal));
  std::array<char, 256> name{};
  check(*driver_, driver_->device_name(name.data(), static_cast<int>(name.size()) - 1, device_),
        fmt::format("name GPU {}", ordinal));
  name_ = fmt::format("GPU {}, {}", ordinal, name.data());
  check(*driver_, driver_->retain_context(&context_, device_), "make a context");
  int failed = driver_->set_context(context_);
  if (failed == 0) {
    failed = driver_->create_stream(&stream_, 0);
  }
  if (failed != 0) {
    static_cast<void>(driver_->release_context(device_));
    check(*driver_, failed, "make a stream");
  }
}

Gpu::~Gpu() {
  static_cast<void>(driver_->destroy_stream(stream_));
  static_cast<void>(driver_->release_context(device_));
}

void Gpu::make_current() const {
  check(*driver_, driver_->set_context(context_), "make its context current");
}

void Gpu::copy_in(void* to, const void* from, std::uint64_t bytes) const {
  if (bytes != 0) {
    check(*driver_, driver_->copy_in(reinterpret_cast<std::uint64_t>(to), from, bytes, stream_),
          fmt::format("copy {} bytes to the GPU", bytes));
  }
}

void Gpu::copy_out(void* to, const void* from, std::uint64_t bytes) const {
  if (bytes != 0) {
    check(*driver_, driver_->copy_out(to, reinterpret_cast<std::uint64_t>(from), bytes, stream_),
          fmt::format("copy {} bytes from the GPU", bytes));
  }
}

void Gpu::arrive(const std::shared_ptr<Gate>& gate) const {
  auto held = std::make_unique<std::shared_ptr<Gate>>(gate);
  const auto call = [](void* argument) {
    const std::unique_ptr<std::shared_ptr<Gate>> arrived(
        static_cast<std::shared_ptr<Gate>*>(argument));
    (*arrived)->arrive(true);
  };
  check(*driver_, driver_->launch_host_function(stream_, call, held.get()), "call back");
  static_cast<void>(held.release());
}

void Gpu::synchronize() const {
  check(*driver_, driver_->synchronize_stream(stream_), "do what it was given");
}

void Gpu::wait() const noexcept { static_cast<void>(driver_->synchronize_stream(stream_)); }

GpuMemory::GpuMemory(const Gpu& gpu, std::uint64_t bytes) : gpu_(gpu) {
  check(*gpu.driver_, gpu.driver_->allocate(&address_, std::max<std::uint64_t>(bytes, 1)),
        fmt::format("give {} bytes of the GPU's memory", bytes));
}

GpuMemory::~GpuMemory() { static_cast<void>(gpu_.driver_->release(address_)); }

void* GpuMemory::data() const { return reinterpret_cast<void*>(address_); }

PinnedMemory::PinnedMemory(const Gpu& gpu, std::uint64_t bytes) : gpu_(gpu) {
  void* memory = nullptr;
  check(*gpu.driver_, gpu.driver_->allocate_pinned(&memory, std::max<std::uint64_t>(bytes, 1), 0),
        fmt::format("give {} bytes of pinned memory", bytes));
  bytes_ = {static_cast<std::byte*>(memory), bytes};
}

PinnedMemory::~PinnedMemory() { static_cast<void>(gpu_.driver_->release_pinned(bytes_.data())); }

}  // namespace gtopk::programs
