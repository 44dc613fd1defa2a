#include "tools/programs/allreduce/subject.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/detached.hpp"
#include "gtopk/selection_rule.hpp"
#include "src/cuda/load.hpp"
#include "src/cuda/step_lists.hpp"

namespace gtopk::programs::allreduce {
namespace {

/// Where a wheel has the kernels: the package's folder, beside gtopk_programs/bin.
std::string kernels_folder() {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (program.parent_path().parent_path().parent_path() / "gtopk").string();
}

/// On a GPU; what a step does there is the subclass's.
class GpuSubject : public Subject {
 public:
  GpuSubject(const Job& job, const Setting& setting, const Device& device)
      : Subject(setting, job.rank()),
        device_(device),
        values_(device.gpu, host().values.size()),
        residual_(device.gpu, host().residual.size()),
        pinned_values_(device.gpu, host().values.size()),
        pinned_residual_(device.gpu, host().residual.size()) {
    std::ranges::fill(pinned_residual_.bytes(), std::byte{0});
    copy_in(residual_, pinned_residual_);
    gpu().synchronize();
  }

  void refill() override {
    std::ranges::copy(host().gradients, pinned_values_.bytes().begin());
    copy_in(values_, pinned_values_);
    gpu().synchronize();
  }

  [[nodiscard]] const Tensor& fetched() override {
    copy_out(pinned_values_, values_);
    copy_out(pinned_residual_, residual_);
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
  GpuMemory values_;
  GpuMemory residual_;
  PinnedMemory pinned_values_;
  PinnedMemory pinned_residual_;
};

/// Copied to the host and back, for what has no kernel.
class StagedSubject final : public GpuSubject {
 public:
  using GpuSubject::GpuSubject;

  void step(Job& job, std::optional<std::uint64_t> seed) override {
    copy_out(pinned_values_, values_);
    copy_out(pinned_residual_, residual_);
    gpu().synchronize();
    job.run(sparse_all_reduce(pinned_values_.bytes().data(), pinned_residual_.bytes().data(),
                              setting().n, setting().dtype, options(seed)));
    copy_in(values_, pinned_values_);
    copy_in(residual_, pinned_residual_);
    gpu().synchronize();
  }
  [[nodiscard]] std::string place() const override { return "staged"; }
};

/// Selected and committed on the GPU: only lists of entries leave it (gtopk/detached.hpp).
class DetachedSubject final : public GpuSubject {
 public:
  DetachedSubject(const Job& job, const Setting& setting, const Device& device,
                  const SelectionRule& rule, const DetachedRoom& room)
      : GpuSubject(job, setting, device),
        rule_(rule),
        divisor_(detached_divisor(setting.sparse, job.size())),
        pinned_lists_(device.gpu, dealt(nullptr, room).bytes),
        lists_(dealt(pinned_lists_.bytes().data(), room)),
        table_(device.gpu, sizeof(cuda::PieceOf)),
        last_key_(device.gpu, sizeof(std::uint64_t)) {
    acc_.dtype = setting.dtype;
    acc_.index_bytes = room.index_bytes;
    acc_.count = 1;
    acc_.d = setting.n;
    *lists_.table = {values_.data(), residual_.data(), 0, setting.n, 0};
    acc_.tiles = device.kernels->number_tiles(lists_.table, 1);
    acc_.pieces = static_cast<const cuda::PieceOf*>(table_.data());
    room_ = std::make_unique<GpuMemory>(gpu(), device.kernels->select_room(acc_, rule_));
    const PinnedMemory zero(gpu(), sizeof(std::uint64_t));
    std::ranges::fill(zero.bytes(), std::byte{0});
    gpu().copy_in(last_key_.data(), zero.bytes().data(), zero.bytes().size());
    gpu().copy_in(table_.data(), lists_.table, sizeof(cuda::PieceOf));
    gpu().synchronize();
  }

  void step(Job& job, std::optional<std::uint64_t> seed) override {
    lists_.reset();
    *lists_.last = host().state;
    cuda::SelectCall select;
    select.acc = acc_;
    select.rule = rule_;
    select.room = room_->data();
    select.kept = {lists_.lists.selected.indices, lists_.lists.selected.values, rule_.most};
    select.report = lists_.report;
    select.last = static_cast<std::uint64_t*>(last_key_.data());
    select.state = lists_.last->numbers.data();
    select.next = lists_.next->numbers.data();
    check(device_.kernels->select(select, gpu().stream()), "select");
    gpu().synchronize();

    job.run(sparse_all_reduce(lists_.lists, setting().n, setting().dtype, options(seed)));

    cuda::CommitCall commit;
    commit.acc = acc_;
    commit.cleared = lists_.lists.cleared;
    commit.returned = {lists_.lists.returned.indices, lists_.lists.returned.values, 0};
    commit.delivered = {lists_.lists.delivered.indices, lists_.lists.delivered.values, 0};
    commit.counts = lists_.lists.counts;
    commit.divisor = divisor_;
    check(device_.kernels->commit(commit, gpu().stream()), "commit");
    gpu().synchronize();
  }
  [[nodiscard]] std::string place() const override { return "device"; }

 private:
  [[nodiscard]] cuda::StepLists dealt(std::byte* memory, const DetachedRoom& room) const {
    return cuda::StepLists::in(memory, room, setting().dtype, 1);
  }
  void check(int error, const char* what) const {
    if (error != 0) {
      throw std::runtime_error(fmt::format("--memory cuda: {} cannot {}: {} ({})", gpu().name(),
                                           what, device_.kernels->error_name(error), error));
    }
  }

  SelectionRule rule_;
  double divisor_;
  PinnedMemory pinned_lists_;
  cuda::StepLists lists_;
  GpuMemory table_;
  GpuMemory last_key_;
  std::unique_ptr<GpuMemory> room_;
  cuda::VectorOf acc_;
};

}  // namespace

Device::Device(std::uint32_t number) : gpu(number), kernels(cuda::load_calls(kernels_folder())) {
  if (kernels == nullptr) {
    return;
  }
  if (const int error = kernels->load(); error != 0) {
    throw std::runtime_error(fmt::format("--memory cuda: {} cannot load the kernels: {} ({})",
                                         gpu.name(), kernels->error_name(error), error));
  }
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
  const auto room = detached_room(setting.n, setting.dtype, options, job.size());
  // As for torch's tensors: not if the lists may be longer than the tensor.
  if (device->kernels == nullptr || !room || room->returned > setting.n) {
    return std::make_unique<StagedSubject>(job, setting, *device);
  }
  const SelectionRule rule = selection_rule(setting.n, setting.dtype, options).value();
  return std::make_unique<DetachedSubject>(job, setting, *device, rule, *room);
}

}  // namespace gtopk::programs::allreduce
