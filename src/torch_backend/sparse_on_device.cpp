#include "src/torch_backend/sparse_on_device.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <set>

#include "src/torch_backend/contiguous.hpp"
#include "src/torch_backend/device_driver.hpp"
#include "src/torch_backend/device_kernels.hpp"
#include "src/torch_backend/device_launcher.hpp"

namespace gtopk::torch_backend {
namespace {

/// The number of bytes that hold() copies.
constexpr std::int64_t kSpare = 8;

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

at::Tensor bytes_on(c10::Device device, std::size_t count) {
  return at::empty({static_cast<std::int64_t>(count)},
                   at::TensorOptions().dtype(at::kByte).device(device));
}

bool all_in_order(const DeviceTensors& tensors) {
  const c10::Device device = tensors.pieces.front().device();
  const auto fits = [&](const at::Tensor& tensor) {
    return lies_in_order(tensor) && tensor.device() == device;
  };
  return std::ranges::all_of(tensors.pieces, fits) &&
         (!tensors.residual || lies_in_order(*tensors.residual)) &&
         (!tensors.momentum || lies_in_order(*tensors.momentum));
}

/// Whether an error of the CUDA runtime says that the kernels do not run on this GPU or with this
/// driver. These are cudaErrorInsufficientDriver and NoKernelImageForDevice, and the errors of the
/// PTX compiler that a GPU newer than the kernels needs: JitCompilerNotFound, UnsupportedPtxVersion
/// and JitCompilationDisabled.
bool says_too_old(int error) {
  static constexpr std::array kAll = {35, 209, 221, 222, 223};
  return std::ranges::find(kAll, error) != kAll.end();
}

/// Whether the loaded kernels of that type give the CPU's bits on the current device; a warning
/// says where they do not. Returns true if this is not to be tested, or cannot be tested because
/// memory is short.
bool passes_self_test(const cuda::Calls& kernels, c10::Device device, DataType dtype) {
  const gpu::SelfTest extent = self_test_of_environment();
  if (extent == gpu::SelfTest::kNone) {
    return true;
  }
  const gpu::Driver& driver = device_driver();
  const DeviceStreams& streams = DeviceStreams::of(device);
  gpu::SelfTestReport report;
  try {
    driver.check(driver.init(0), "start");
    driver.make_current(device.index());
    report = gpu::test_kernels(driver, kernels, dtype, streams.native(streams.launching()), extent);
  } catch (const gpu::Failure& failure) {
    LOG(WARNING) << "gtopk: the kernels were not tested on " << device << ": " << failure.what();
    return true;
  }
  if (report.failures.empty()) {
    return true;
  }
  TORCH_WARN("gtopk: ", device, " (", driver.described(device.index()),
             ") failed the self-test of gtopk's kernels in ", report.failures.size(), " of ",
             report.calls, " calls. The first: ", report.failures.front(),
             ". Sparse all-reduces select and commit on the CPU, with the same results. Please ",
             "report this, with what `gtopk-info --gpu` prints. GTOPK_CUDA_KERNELS=none avoids ",
             "this warning; GTOPK_CUDA_SELF_TEST=0 uses the kernels without a test");
  return false;
}

/// Loads and tests the kernels of this type, once for each device, because a kernel that is loaded
/// at its first launch may synchronise while a stream waits for a result. Returns false if the
/// device cannot run them, or runs them wrongly.
bool load_kernels(const cuda::Calls& kernels, c10::Device device, DataType dtype) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, std::set<DataType>> loaded;
  static std::set<c10::DeviceIndex> unfit;
  const std::lock_guard lock(mutex);
  if (unfit.contains(device.index())) {
    return false;
  }
  std::set<DataType>& types = loaded[device.index()];
  if (types.contains(dtype)) {
    return true;
  }
  DeviceStreams::of(device).refuse_capture();
  const c10::DeviceGuard now_current(device);
  const int error = kernels.load(dtype);
  if (says_too_old(error)) {
    unfit.insert(device.index());
    TORCH_WARN("gtopk: ", device, " or its driver is too old for gtopk's kernels (",
               kernels.error_name(error), "): sparse all-reduces select and commit on the CPU. ",
               "GTOPK_CUDA_KERNELS=none avoids this warning");
    return false;
  }
  rethrow_failures([&] { gpu::check_kernels(kernels, error, device.str(), "load the kernels"); });
  if (!passes_self_test(kernels, device, dtype)) {
    unfit.insert(device.index());
    return false;
  }
  types.insert(dtype);
  return true;
}

}  // namespace

std::shared_ptr<SparseOnDevice> SparseOnDevice::of(const DeviceTensors& tensors,
                                                   const SparseOptions& options,
                                                   std::uint32_t ranks) {
  const c10::Device device = tensors.pieces.front().device();
  if (device.is_cpu() || tensors.d == 0 || !all_in_order(tensors)) {
    return nullptr;
  }
  const cuda::Calls* const kernels = device_kernels();
  if (kernels == nullptr || !load_kernels(*kernels, device, tensors.dtype)) {
    return nullptr;
  }
  if (options.algorithm == "auto" && tensors.noted) {
    return nullptr;  // the staged call reports this error
  }
  const auto path = gpu::device_path_of(
      {
          .d = tensors.d,
          .dtype = tensors.dtype,
          .pieces = tensors.pieces.size(),
          .ranks = ranks,
      },
      options);
  return path ? std::make_shared<SparseOnDevice>(*kernels, tensors, *path, options.seed) : nullptr;
}

SparseOnDevice::SparseOnDevice(const cuda::Calls& kernels, const DeviceTensors& tensors,
                               const gpu::DevicePath& path, std::optional<std::uint64_t> seed)
    : tensors_(tensors),
      seed_(seed),
      streams_(DeviceStreams::of(tensors.pieces.front().device())),
      step_(kernels, launcher_of(streams_.device()), path),
      laid_(streams_.device().type()) {}

SparseOnDevice::~SparseOnDevice() {
  if (state_read_ && !state_read_->load(std::memory_order_acquire)) {
    // The operation was never queued, and the state has yet to be read, so it is leaked.
    static_cast<void>(std::make_unique<at::Tensor>(*tensors_.state).release());
  }
}

void SparseOnDevice::lay_out() {
  const c10::Device device = streams_.device();
  blocks_->pinned =
      host_memory({static_cast<std::int64_t>(step_.pinned_bytes())}, at::kByte, device);
  blocks_->on_device = bytes_on(device, step_.device_bytes() + kSpare);
  const std::size_t value_bytes = size_of(accumulation_type(tensors_.dtype));
  std::vector<cuda::PieceOf> pieces;
  std::byte* residual = tensors_.residual ? bytes_of(*tensors_.residual) : nullptr;
  for (const at::Tensor& tensor : tensors_.pieces) {
    const auto size = static_cast<std::uint64_t>(tensor.numel());
    if (size != 0) {
      pieces.push_back({.tensor = bytes_of(tensor), .residual = residual, .size = size});
      residual = residual == nullptr ? nullptr : residual + size * value_bytes;
    }
  }
  gpu::StepMemory memory;
  memory.pinned = bytes_of(blocks_->pinned);
  memory.device = bytes_of(blocks_->on_device);
  memory.owner = blocks_;
  step_.lay_out(memory, pieces, tensors_.momentum ? bytes_of(*tensors_.momentum) : nullptr);
}

void SparseOnDevice::read_state() {
  SelectorState* const to = step_.last_state();
  if (to == nullptr || !tensors_.state) {
    return;
  }
  state_read_ = std::make_shared<std::atomic<bool>>(false);
  streams_.call_behind_reads(
      [to, from = tensors_.state->const_data_ptr<double>(), read = state_read_] {
        std::copy_n(from, to->numbers.size(), to->numbers.data());
        read->store(true, std::memory_order_release);
      });
}

void SparseOnDevice::begin() {
  const BelowAutograd below;
  const c10::Stream callers = streams_.current();
  // This may allocate memory, which is impossible while a graph is captured.
  streams_.on_reading([&](const c10::Stream& stream) {
    at::Tensor scratch;
    {
      const c10::StreamGuard now_current(callers);  // freed memory belongs to the caller's stream
      lay_out();
      scratch = bytes_on(streams_.device(), step_.scratch_bytes());
    }
    const std::span<const std::byte> table = step_.table();
    const auto size = static_cast<std::int64_t>(table.size());
    blocks_->on_device.narrow(0, 0, size)
        .copy_(blocks_->pinned.narrow(0, table.data() - bytes_of(blocks_->pinned), size),
               /*non_blocking=*/true);
    read_state();
    rethrow_failures([&] { step_.begin(bytes_of(scratch), streams_.native(stream)); });
    if (!step_.needs_seed()) {
      hold(blocks_->pinned);
    }
    in_use_on(stream);
    streams_.in_use_on(scratch, stream);
    laid_.record(stream);
  });
}

void SparseOnDevice::follow(std::uint64_t number) {
  if (!step_.needs_seed()) {
    return;
  }
  const BelowAutograd below;
  streams_.on_reading([&](const c10::Stream& stream) {
    rethrow_failures([&] { step_.follow(seed_.value_or(number), streams_.native(stream)); });
    hold(blocks_->pinned);
    in_use_on(stream);
    laid_.record(stream);
  });
}

void SparseOnDevice::commit(const c10::Stream& stream) const {
  const BelowAutograd below;
  laid_.block(stream);
  rethrow_failures([&] { step_.commit(streams_.native(stream)); });
  hold(blocks_->pinned);
  in_use_on(stream);
}

void SparseOnDevice::in_use_on(const c10::Stream& stream) const {
  for (const at::Tensor& each : tensors_.pieces) {
    streams_.in_use_on(each, stream);
  }
  for (const auto& each : {tensors_.residual, tensors_.momentum}) {
    if (each) {
      streams_.in_use_on(*each, stream);
    }
  }
  streams_.in_use_on(blocks_->on_device, stream);
}

void SparseOnDevice::hold(const at::Tensor& pinned) const {
  const at::Tensor& spare = blocks_->on_device;
  spare.narrow(0, spare.numel() - kSpare, kSpare)
      .copy_(pinned.narrow(0, 0, kSpare), /*non_blocking=*/true);
}

}  // namespace gtopk::torch_backend
