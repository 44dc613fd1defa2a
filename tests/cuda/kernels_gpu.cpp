#include "tests/cuda/kernels_gpu.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "src/cuda/load.hpp"

namespace gtopk::sparse::testing {
namespace {

std::unique_ptr<Gpu>& the_gpu() {
  static std::unique_ptr<Gpu> one;
  return one;
}

/// Of the calls of one kind.
struct Tally {
  std::uint64_t calls = 0;
  std::uint64_t launches = 0;
};

std::map<std::string, Tally>& tallies() {
  static std::map<std::string, Tally> all;
  return all;
}

class GpuOfThisProgram : public ::testing::Environment {
 public:
  void SetUp() override {
    setenv("GTOPK_CUDA_DRIVER", FAKE_GPU, 0);
    setenv("GTOPK_CUDA_KERNELS", FAKE_GPU, 0);
    try {
      the_gpu() = std::make_unique<Gpu>();
    } catch (const std::exception& error) {
      FAIL() << error.what();  // and no test runs
    }
  }
  void TearDown() override {
    the_gpu().reset();
    // For tools/gpu-check. In XML these are names of attributes.
    for (const auto& [call, tally] : tallies()) {
      ::testing::Test::RecordProperty("launches_of_" + call,
                                      fmt::format("{} in {} calls", tally.launches, tally.calls));
    }
  }
};

const auto* const kGpuOfThisProgram = ::testing::AddGlobalTestEnvironment(new GpuOfThisProgram);

}  // namespace

Gpu::Gpu() : driver_(gpu::Driver::get()) {
  driver_.check(driver_.init(0), "start");
  driver_.make_current(0);
  driver_.check(driver_.create_stream(&stream_, 0), "make a stream");
  calls_ = cuda::load_calls("");
  if (calls_ == nullptr) {
    throw std::runtime_error("GTOPK_CUDA_KERNELS names no kernels");
  }
  for (const DataType dtype :
       {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16, DataType::kFloat16}) {
    check(calls_->load(dtype));
  }
}

Gpu::~Gpu() {
  static_cast<void>(driver_.synchronize_stream(stream_));
  static_cast<void>(driver_.destroy_stream(stream_));
}

const Gpu& Gpu::get() { return *the_gpu(); }

void Gpu::wait() const { driver_.check(driver_.synchronize_stream(stream_), "end what it runs"); }

void Gpu::check(int error) const {
  if (error != 0) {
    static_cast<void>(driver_.synchronize_stream(stream_));
    throw gpu::Failure(fmt::format("the kernels: {} ({})", calls_->error_name(error), error));
  }
}

void expect_launches(const cuda::Launches& declared, std::uint64_t seen) {
  EXPECT_EQ(seen, declared.count) << declared.call << " declares " << declared.count
                                  << " launches (src/cuda/launches.hpp), seen " << seen;
  Tally& tally = tallies()[declared.call];
  ++tally.calls;
  tally.launches += seen;
}

Block::Block(Place place, std::size_t bytes) : place_(place) {
  const gpu::Driver& driver = Gpu::get().driver();
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  if (place == Place::kPinned) {
    void* memory = nullptr;
    driver.check(driver.allocate_pinned(&memory, size, 0), "give pinned memory");
    memory_ = static_cast<std::byte*>(memory);
  } else {
    std::uint64_t address = 0;
    driver.check(driver.allocate(&address, size), "give memory");
    memory_ = reinterpret_cast<std::byte*>(address);
  }
}

Block::Block(Block&& other) noexcept
    : place_(other.place_), memory_(std::exchange(other.memory_, nullptr)) {}

Block::~Block() {
  if (memory_ == nullptr) {
    return;
  }
  const gpu::Driver& driver = Gpu::get().driver();
  static_cast<void>(place_ == Place::kPinned
                        ? driver.release_pinned(memory_)
                        : driver.release(reinterpret_cast<std::uint64_t>(memory_)));
}

void Block::write(std::size_t at, const void* from, std::size_t bytes) {
  if (bytes == 0) {
    return;
  }
  if (place_ == Place::kPinned) {
    std::memcpy(memory_ + at, from, bytes);
    return;
  }
  const Gpu& gpu = Gpu::get();
  gpu.driver().check(gpu.driver().copy_in(reinterpret_cast<std::uint64_t>(memory_) + at, from,
                                          bytes, gpu.stream()),
                     "copy to the GPU");
  gpu.wait();  // `from` may be gone after this
}

void Block::read(std::size_t at, void* to, std::size_t bytes) const {
  const Gpu& gpu = Gpu::get();
  gpu.wait();
  if (bytes == 0) {
    return;
  }
  if (place_ == Place::kPinned) {
    std::memcpy(to, memory_ + at, bytes);
    return;
  }
  gpu.driver().check(
      gpu.driver().copy_out(to, reinterpret_cast<std::uint64_t>(memory_) + at, bytes, gpu.stream()),
      "copy from the GPU");
  gpu.wait();
}

std::uint64_t scaled(std::uint64_t seeds) {
  const char* const times = std::getenv("GTOPK_SEEDS");
  if (times == nullptr) {
    return seeds;
  }
  const double wanted = std::ceil(static_cast<double>(seeds) * std::strtod(times, nullptr));
  return static_cast<std::uint64_t>(std::clamp(wanted, 1.0, 1e9));
}

}  // namespace gtopk::sparse::testing
