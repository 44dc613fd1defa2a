#include "src/gpu/step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace gtopk::gpu {
namespace {

/// A step's memory on the device.
struct DeviceWorkspace {
  cuda::PieceOf* table = nullptr;
  std::byte* sketch = nullptr;
  std::size_t bytes = 0;

  static DeviceWorkspace in(std::byte* begin, const cuda::Calls& kernels, const DevicePath& path) {
    Deal deal(begin, 256);
    DeviceWorkspace all;
    all.table = reinterpret_cast<cuda::PieceOf*>(deal.take(path.pieces * sizeof(cuda::PieceOf)));
    if (path.has_sketch()) {
      all.sketch = deal.take(kernels.sketch_workspace_bytes(
          accumulation_type(path.dtype), path.sums->columns, path.d, path.sums->candidates));
    }
    all.bytes = deal.taken();
    return all;
  }
};

}  // namespace

void check_kernels(const cuda::Calls& kernels, int error, const std::string& device,
                   const char* what) {
  if (error != 0) {
    throw Failure(
        fmt::format("{} cannot {}: {} ({})", device, what, kernels.error_name(error), error));
  }
}

std::optional<DevicePath> device_path_of(const Asked& asked, const SparseOptions& options) {
  if (asked.d == 0 || asked.d > std::numeric_limits<cuda::Index>::max()) {
    return std::nullopt;
  }
  DevicePath path;
  path.d = asked.d;
  path.dtype = asked.dtype;
  path.pieces = asked.pieces;
  path.divisor = detached_divisor(options, asked.ranks);
  std::optional<DetachedCapacity> edits =
      detached_capacity(asked.d, asked.dtype, options, asked.ranks);
  if (const auto of_auto = auto_capacity(asked.d, asked.dtype, options, asked.ranks)) {
    edits = of_auto->lists;
    path.sums = of_auto->acc;
  }
  if (!edits || edits->returned > asked.d) {
    path.sums = acc_capacity(asked.d, asked.dtype, options);
    if (!path.sums) {
      return std::nullopt;
    }
    return path;
  }
  path.rule = selection_rule(asked.d, asked.dtype, options).value();
  path.edits = *edits;
  return path;
}

Step::Step(const cuda::Calls& kernels, Launcher& launcher, const DevicePath& path)
    : kernels_(kernels), launcher_(launcher), path_(path) {}

Step::~Step() = default;

void Step::check(int error, const char* what) const {
  check_kernels(kernels_, error, launcher_.device(), what);
}

std::size_t Step::pinned_bytes() const { return SharedWorkspace::in(nullptr, path_).bytes; }
std::size_t Step::device_bytes() const {
  return DeviceWorkspace::in(nullptr, kernels_, path_).bytes;
}

void Step::lay_out(const StepMemory& memory, std::span<const cuda::PieceOf> pieces,
                   void* momentum) {
  shared_ = SharedWorkspace::in(memory.pinned, path_);
  shared_.reset();
  const DeviceWorkspace there = DeviceWorkspace::in(memory.device, kernels_, path_);
  momentum_ = momentum;
  sketch_workspace_ = there.sketch;
  std::ranges::copy(pieces, shared_.table);
  acc_.dtype = path_.dtype;
  acc_.pieces = there.table;
  acc_.count = static_cast<std::uint32_t>(pieces.size());
  acc_.d = path_.d;
  acc_.tiles = kernels_.number_tiles(shared_.table, acc_.count);
  if (path_.asks()) {
    acc_kernels_ = std::make_unique<AccKernels>(kernels_, launcher_, memory.owner, *shared_.whole);
    shared_.sums.device = acc_kernels_.get();
  }
  if (path_.is_auto() && path_.asks()) {
    acc_kernels_->accumulates_by({acc_, shared_.sums.sums, shared_.whole});
  }
  if (path_.has_sketch()) {
    // The kernel reads as many indices as may be found, so indices that are not found must stay
    // valid.
    std::memset(shared_.sums.candidates.indices, 0, path_.sums->candidates * sizeof(cuda::Index));
  }
}

std::span<const std::byte> Step::table() const {
  return std::as_bytes(std::span(shared_.table, acc_.count));
}

std::size_t Step::scratch_bytes() const {
  return path_.rule ? kernels_.select_workspace_bytes(acc_, *path_.rule) : 0;
}

SelectorState* Step::last_state() const {
  return path_.rule && path_.rule->kind == SelectionRule::Kind::kThreshold ? shared_.last : nullptr;
}

void Step::select(void* scratch, Driver::Stream stream) const {
  const DetachedEntries& kept = shared_.lists.selected;
  cuda::SelectCall call;
  call.acc = acc_;
  call.rule = *path_.rule;
  call.workspace = scratch;
  call.kept = {kept.indices, kept.values, path_.rule->most};
  call.report = shared_.report;
  call.state = shared_.last->numbers.data();
  call.next = shared_.next->numbers.data();
  check(kernels_.select(call, stream), "select");
}

void Step::begin(void* scratch, Driver::Stream stream) const {
  if (path_.rule) {
    select(scratch, stream);
  } else if (path_.sums->whole) {
    check(kernels_.accumulate(cuda::AccumulateCall{acc_, shared_.sums.sums}, stream), "accumulate");
  }
}

void Step::draw_and_gather(std::uint64_t seed, Driver::Stream stream) const {
  const AccOnDevice& sums = shared_.sums;
  draw_indices(*path_.sums, path_.d, seed, sums.delivered.indices);
  check(kernels_.gather(cuda::GatherCall{acc_, sums.delivered.indices, path_.sums->delivered,
                                         sums.delivered.values, shared_.finite},
                        stream),
        "gather");
}

void Step::sketch(std::uint64_t seed, Driver::Stream stream) {
  const AccCapacity& capacity = *path_.sums;
  const AccOnDevice& sums = shared_.sums;
  cuda::SketchCall call;
  call.acc = acc_;
  call.seed = seed;
  call.columns = capacity.columns;
  call.workspace = sketch_workspace_;
  call.cells = sums.sums;
  check(kernels_.sketch(call, stream), "sketch");
  cuda::FindCall find;
  find.values = accumulation_type(path_.dtype);
  find.d = path_.d;
  find.seed = seed;
  find.columns = capacity.columns;
  find.cells = sums.sums;
  find.most = capacity.candidates;
  find.workspace = sketch_workspace_;
  find.heaviest = {sums.candidates.indices, sums.candidates.values, capacity.candidates};
  find.report = shared_.report;
  acc_kernels_->finds_by(find, {acc_, sums.candidates.indices, capacity.candidates,
                                sums.candidates.values, shared_.finite});
}

void Step::follow(std::uint64_t seed, Driver::Stream stream) {
  if (path_.has_sketch()) {
    sketch(seed, stream);
  } else if (path_.sums && path_.sums->drawn) {
    draw_and_gather(seed, stream);
  }
}

Collective Step::collective(const SparseOptions& options, const Delivered& delivered) const {
  if (path_.is_auto()) {
    return sparse_all_reduce(AutoOnDevice{shared_.lists, shared_.sums}, path_.d, path_.dtype,
                             options);
  }
  return path_.rule ? sparse_all_reduce(shared_.lists, path_.d, path_.dtype, options, delivered)
                    : sparse_all_reduce(shared_.sums, path_.d, path_.dtype, options, delivered);
}

void Step::commit_edits(const Detached& edits, Driver::Stream stream) const {
  cuda::CommitCall call;
  call.acc = acc_;
  call.momentum = momentum_;
  call.cleared = edits.cleared;
  call.returned = {edits.returned.indices, edits.returned.values, 0};
  call.delivered = {edits.delivered.indices, edits.delivered.values, 0};
  call.counts = edits.counts;
  call.divisor = path_.divisor;
  call.unless = path_.is_auto() ? shared_.whole : nullptr;
  check(kernels_.commit(call, stream), "commit");
}

void Step::commit_sums(Driver::Stream stream) const {
  const AccOnDevice& sums = shared_.sums;
  const cuda::CommitWholeCall call{acc_, sums.sums, sums.counts, path_.divisor,
                                   path_.is_auto() ? shared_.whole : nullptr};
  check(kernels_.commit_whole(call, stream), "commit");
}

void Step::commit(Driver::Stream stream) const {
  const AccOnDevice& sums = shared_.sums;
  if (path_.rule) {
    commit_edits(shared_.lists, stream);
    if (path_.is_auto() && path_.asks()) {
      commit_sums(stream);  // one of the two does nothing, depending on the choice of `auto`
    }
  } else if (path_.sums->delivered == 0) {
    commit_sums(stream);
  } else {
    Detached edits;
    edits.cleared = sums.delivered.indices;
    edits.delivered = sums.delivered;
    edits.counts = sums.counts;
    commit_edits(edits, stream);
  }
}

}  // namespace gtopk::gpu
