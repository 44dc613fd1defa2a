#include "tools/programs/allreduce/subject.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/gate.hpp"
#include "src/cuda/load.hpp"
#include "src/gpu/step.hpp"

namespace gtopk::programs::allreduce {
namespace {

/// A tensor and its residual on a GPU.
struct GpuTensor {
  GpuTensor(const Gpu& gpu, const Tensor& like)
      : values(gpu, like.values.size()), residual(gpu, like.residual.size()) {}

  GpuMemory values;
  GpuMemory residual;
};

/// A subject on a GPU; subclasses define what a step does there.
class GpuSubject : public Subject {
 public:
  GpuSubject(const Job& job, const Setting& setting, const Device& device)
      : Subject(setting, job.rank()),
        device_(device),
        there_(std::make_shared<GpuTensor>(device.gpu, host())),
        pinned_values_(device.gpu, host().values.size()),
        pinned_residual_(device.gpu, host().residual.size()) {
    std::ranges::fill(pinned_residual_.bytes(), std::byte{0});
    copy_in(there_->residual, pinned_residual_);
    gpu().synchronize();
  }

  void refill() override {
    std::ranges::copy(host().gradients, pinned_values_.bytes().begin());
    copy_in(there_->values, pinned_values_);
    gpu().synchronize();
  }

  [[nodiscard]] const Tensor& fetched() override {
    copy_out(pinned_values_, there_->values);
    copy_out(pinned_residual_, there_->residual);
    gpu().synchronize();
    std::ranges::copy(pinned_values_.bytes(), host().values.begin());
    std::ranges::copy(pinned_residual_.bytes(), host().residual.begin());
    return host();
  }

 protected:
  [[nodiscard]] const Gpu& gpu() const { return device_.gpu; }
  void copy_in(const GpuMemory& to, const PinnedMemory& from) const {
    gpu().copy_in(to.data(), from.bytes().data(), from.bytes().size());
  }
  void copy_out(const PinnedMemory& to, const GpuMemory& from) const {
    gpu().copy_out(to.bytes().data(), from.data(), to.bytes().size());
  }

  const Device& device_;
  const std::shared_ptr<GpuTensor> there_;
  PinnedMemory pinned_values_;
  PinnedMemory pinned_residual_;
};

/// Copies tensor and residual to the host and back, for settings without kernels.
class StagedSubject final : public GpuSubject {
 public:
  using GpuSubject::GpuSubject;

  void step(Job& job, std::optional<std::uint64_t> seed) override {
    copy_out(pinned_values_, there_->values);
    copy_out(pinned_residual_, there_->residual);
    gpu().synchronize();
    job.run(sparse_all_reduce(pinned_values_.bytes().data(), pinned_residual_.bytes().data(),
                              setting().n, setting().dtype, options(seed)));
    copy_in(there_->values, pinned_values_);
    copy_in(there_->residual, pinned_residual_);
    gpu().synchronize();
  }
  [[nodiscard]] std::string place() const override { return "staged"; }
};

/// How often a long step checks whether its GPU has failed.
constexpr std::chrono::milliseconds kLook(100);

/// The memory that the kernels of a step use, on host and device. A step that fails may leave work
/// on this memory pending, including work of the operation and the launcher.
struct StepWorkspace {
  StepWorkspace(const Gpu& gpu, const gpu::Step& step, std::shared_ptr<GpuTensor> of)
      : tensor(std::move(of)),
        pinned(gpu, step.pinned_bytes()),
        on_device(gpu, step.device_bytes()) {}

  const std::shared_ptr<GpuTensor> tensor;
  PinnedMemory pinned;
  GpuMemory on_device;
};

/// Does the same as for torch's tensors (src/gpu/step.hpp), except that this thread commits the
/// results when the operation has ended.
class StaysSubject final : public GpuSubject {
 public:
  StaysSubject(const Job& job, const Setting& setting, const Device& device,
               const gpu::DevicePath& path)
      : GpuSubject(job, setting, device),
        step_(*device.kernels, *device.launcher, path),
        workspace_(std::make_shared<StepWorkspace>(device.gpu, step_, there_)) {
    gpu::StepMemory memory;
    memory.pinned = workspace_->pinned.bytes().data();
    memory.device = static_cast<std::byte*>(workspace_->on_device.data());
    memory.owner = workspace_;
    const cuda::PieceOf all{
        .tensor = there_->values.data(), .residual = there_->residual.data(), .size = setting.n};
    step_.lay_out(memory, std::span(&all, 1), nullptr);
    scratch_ = std::make_unique<GpuMemory>(gpu(), step_.scratch_bytes());
    gpu().copy_in(workspace_->on_device.data(), step_.table().data(), step_.table().size());
    gpu().synchronize();
  }

  StaysSubject(const StaysSubject&) = delete;
  StaysSubject& operator=(const StaysSubject&) = delete;
  StaysSubject(StaysSubject&&) = delete;
  StaysSubject& operator=(StaysSubject&&) = delete;
  /// Waits, because the work of a failed step may still use this memory.
  ~StaysSubject() override { gpu().wait(); }

  void step(Job& job, std::optional<std::uint64_t> seed) override {
    step_.reset();
    if (SelectorState* const state = step_.last_state()) {
      *state = host().state;
    }
    step_.begin(scratch_->data(), gpu().stream());
    const auto input = std::make_shared<Gate>(1);
    const auto failure = std::make_shared<std::promise<std::string>>();
    std::future<std::string> failed = failure->get_future();
    const auto watched =
        device_.watch->expect([failure](const std::string& why) { failure->set_value(why); });
    std::uint64_t number = 0;
    std::future<void> ended =
        job.begin(step_.collective(options(seed), {}), input, &number, workspace_);
    try {
      step_.follow(seed.value_or(number), gpu().stream());
      gpu().arrive(input);
    } catch (...) {
      input->arrive(false);
      ended.wait();  // the operation reads and writes this object's memory
      device_.watch->forget(watched);
      throw;
    }
    while (ended.wait_for(kLook) != std::future_status::ready) {
      if (failed.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
        const std::string why = failed.get();
        job.group().abort(why);  // notifies other ranks; the input would never come
        ended.wait();
        throw std::runtime_error(why);
      }
    }
    device_.watch->forget(watched);
    ended.get();
    step_.commit(gpu().stream());
    gpu().synchronize();
  }
  [[nodiscard]] std::string place() const override { return "device"; }

 private:
  gpu::Step step_;
  const std::shared_ptr<StepWorkspace> workspace_;
  std::unique_ptr<GpuMemory> scratch_;
};

}  // namespace

Device::Device(std::uint32_t number) : gpu(number), kernels(cuda::load_calls(kernels_folder())) {
  if (kernels == nullptr) {
    return;
  }
  const std::string name = "--memory cuda: " + gpu.name();
  const auto make_current = [this] { gpu.make_current(); };
  watch = std::make_unique<gpu::Watch>(gpu.driver(), gpu.stream(), name, make_current);
  launcher =
      std::make_unique<gpu::Launcher>(gpu.driver(), gpu.stream(), name, make_current, *watch);
}

SparseOptions Subject::options(std::optional<std::uint64_t> seed) {
  SparseOptions options = setting_.sparse;
  options.seed = seed;
  options.state = &host_.state;
  return options;
}

void Subject::step(Job& job, std::optional<std::uint64_t> seed) {
  job.run(sparse_all_reduce(host_.values.data(), host_.residual.data(), setting_.n, setting_.dtype,
                            options(seed)));
}

std::unique_ptr<Subject> subject(const Job& job, const Setting& setting, const Device* device) {
  if (device == nullptr) {
    return std::make_unique<Subject>(setting, job.rank());
  }
  SelectorState state;
  SparseOptions options = setting.sparse;
  options.state = &state;
  std::optional<gpu::DevicePath> path;
  if (device->kernels != nullptr) {
    gpu::check_kernels(*device->kernels, device->kernels->load(setting.dtype),
                       "--memory cuda: " + device->gpu.name(), "load the kernels");
    path =
        gpu::device_path_of({.d = setting.n, .dtype = setting.dtype, .ranks = job.size()}, options);
  }
  if (!path) {
    return std::make_unique<StagedSubject>(job, setting, *device);
  }
  return std::make_unique<StaysSubject>(job, setting, *device, *path);
}

}  // namespace gtopk::programs::allreduce
