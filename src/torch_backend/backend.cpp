#include "src/torch_backend/backend.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "src/torch_backend/contiguous.hpp"
#include "src/torch_backend/errors.hpp"
#include "src/torch_backend/forks.hpp"
#include "src/torch_backend/gil.hpp"
#include "src/torch_backend/sparse_on_device.hpp"
#include "src/torch_backend/store.hpp"
#include "src/torch_backend/tensors.hpp"

namespace gtopk::torch_backend {
namespace {

using c10d::OpType;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/// Checks a vector made of one tensor with any strides, or of several contiguous tensors.
void check_pieces(const std::vector<at::Tensor>& tensors) {
  static constexpr const char* kWhat = "sparse_all_reduce";
  if (tensors.size() == 1) {
    check_writable(only(tensors, kWhat), kWhat);
    return;
  }
  TORCH_CHECK_VALUE(!tensors.empty(),
                    "gtopk: sparse_all_reduce takes at least one tensor, given none");
  for (const at::Tensor& tensor : tensors) {
    check_dense(tensor, kWhat);
    TORCH_CHECK_VALUE(tensor.dtype() == tensors.front().dtype(),
                      "gtopk: sparse_all_reduce of several tensors takes one dtype, given ",
                      tensors.front().dtype(), " and ", tensor.dtype());
    TORCH_CHECK_VALUE(tensor.is_contiguous() && !tensor.is_neg(),
                      "gtopk: sparse_all_reduce of several tensors takes contiguous tensors, given "
                      "one of sizes ",
                      tensor.sizes(), ", strides ", tensor.strides());
  }
}

/// Returns buffers for `delivered`, which is empty or {indices, values} of equal length; a result
/// of all elements has no indices to record. Their memory is appended to `at`.
Delivered delivered_buffers(const std::vector<at::Tensor>& delivered, DataType type,
                            const SparseOptions& options, std::vector<Contiguous>& at) {
  if (delivered.empty()) {
    return {};
  }
  const bool whole = options.algorithm != "auto" && traits_of(options).delivers_all;
  const bool fits = delivered.size() == 2 && delivered[0].scalar_type() == at::kLong &&
                    data_type(delivered[1]) == accumulation_type(type) &&
                    delivered[0].is_contiguous() && delivered[1].is_contiguous() &&
                    (whole || delivered[0].numel() == delivered[1].numel());
  TORCH_CHECK_VALUE(fits,
                    "gtopk: delivered entries are recorded in two contiguous tensors of one size: "
                    "indices of int64 and values of the accumulation type");
  for (const at::Tensor& each : delivered) {
    check_dense(each, "sparse_all_reduce");
    at.push_back(contiguous(each));
  }
  const at::Tensor& indices = at[at.size() - 2].memory;
  const at::Tensor& values = at.back().memory;
  return {indices.mutable_data_ptr<std::int64_t>(), values.mutable_data_ptr(),
          static_cast<std::uint64_t>(values.numel())};
}

/// The selector state in a tensor's memory.
SelectorState* numbers_of(const at::Tensor& state) {
  static constexpr auto kNumbers =
      static_cast<std::int64_t>(std::tuple_size_v<decltype(SelectorState::numbers)>);
  static_assert(sizeof(SelectorState) == kNumbers * sizeof(double));
  static constexpr const char* kWhat = "sparse_all_reduce's state";
  check_dense(state, kWhat);
  TORCH_CHECK_VALUE(state.device().is_cpu() && state.scalar_type() == at::kDouble &&
                        state.is_contiguous() && state.sizes() == at::IntArrayRef(kNumbers),
                    "gtopk: a selector's state must be a contiguous float64 tensor of shape [",
                    kNumbers, "] on the CPU; given ", state.dtype(), " of shape ", state.sizes(),
                    " on ", state.device());
  return reinterpret_cast<SelectorState*>(state.mutable_data_ptr<double>());
}

}  // namespace

bool GtopkBackend::takes_devices(std::optional<int64_t> other) {
  const auto member = membership();
  const auto takes = [&](int64_t rank) {
    return rank >= 0 && rank < size_ &&
           member->communicator.takes(Memory::Kind::kCuda, static_cast<std::uint32_t>(rank));
  };
  bool all = size_ > 1;
  for (int64_t rank = other.value_or(0); rank <= other.value_or(size_ - 1); ++rank) {
    all = all && (takes(rank) || (rank == rank_ && !other));
  }
  return all;
}

Staging GtopkBackend::staging_of(const at::Tensor& tensor, std::optional<int64_t> other,
                                 std::size_t copied) {
  if (tensor.device().is_cpu() || tensor.nbytes() <= copied || !lies_in_order(tensor)) {
    return Staging::kStaged;
  }
  return takes_devices(other) ? Staging::kInPlace : Staging::kStaged;
}

WorkPointer GtopkBackend::allreduce(std::vector<at::Tensor>& tensors,
                                    const c10d::AllreduceOptions& opts) {
  const NotesError noting(window_);
  if (tensors.size() == 1 && tensors.front().is_sparse()) {
    return allreduce_coo(tensors, opts);
  }
  const Contiguous at = writable(only(tensors, "all_reduce"), "all_reduce");
  const Buffer data = at.buffer(data_type(at.memory));
  const auto [op, factor] = reduction(opts.reduceOp);
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLREDUCE, "gtopk:all_reduce", tensors,
                                             std::vector{at}, tensors);
  return run(std::move(work), opts.timeout, [&] { return all_reduce(data, op, factor); });
}

WorkPointer GtopkBackend::broadcast(std::vector<at::Tensor>& tensors,
                                    const c10d::BroadcastOptions& opts) {
  const NotesError noting(window_);
  const at::Tensor& tensor = only(tensors, "broadcast");
  const Staging staging = staging_of(tensor, std::nullopt, kShortBroadcast);
  const bool reads = rank_ == opts.rootRank && staging == Staging::kStaged;
  const Contiguous at =
      reads ? writable(tensor, "broadcast") : destination(tensor, "broadcast", staging);
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::BROADCAST, "gtopk:broadcast", tensors,
                                             std::vector{at}, tensors);
  return run(std::move(work), opts.timeout, [&] {
    return gtopk::broadcast(at.buffer(type_to_move(tensor)),
                            static_cast<std::uint32_t>(opts.rootRank));
  });
}

WorkPointer GtopkBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                    std::vector<at::Tensor>& inputs,
                                    const c10d::AllgatherOptions& opts) {
  const NotesError noting(window_);
  const at::Tensor& input = only(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1 && outputs[0].size() == static_cast<std::size_t>(size_),
                    "gtopk: all_gather needs one list of ", size_, " output tensors");
  std::vector<Contiguous> at;
  Buffers buffers;
  std::size_t bytes = 0;
  for (const at::Tensor& output : outputs[0]) {
    check_dense(output, "all_gather");
    bytes += output.nbytes();
  }
  for (const at::Tensor& output : outputs[0]) {
    TORCH_CHECK_VALUE(output.dtype() == input.dtype(), "gtopk: all_gather needs outputs of the ",
                      "input's dtype (", input.dtype(), "), given ", output.dtype());
    const std::size_t copied = bytes <= kShortAllGather ? kShortAllGather : kShortMessage;
    at.push_back(destination(output, "all_gather", staging_of(output, std::nullopt, copied)));
    buffers.push_back(at.back().buffer(type_to_move(input)));
  }
  const at::Tensor& own = at[static_cast<std::size_t>(rank_)].memory;
  TORCH_CHECK_VALUE(own.numel() == input.numel(), "gtopk: all_gather needs output ", rank_,
                    " to match the input, which has ", input.numel(), " elements, given ",
                    own.numel());
  copy_elements(own, input);
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLGATHER, "gtopk:all_gather", inputs,
                                             std::move(at), outputs[0]);
  return run(std::move(work), opts.timeout, [&] { return all_gather(buffers); });
}

WorkPointer GtopkBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& opts) {
  const NotesError noting(window_);
  check_dense(input, "all_gather_into_tensor");
  check_dense(output, "all_gather_into_tensor");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size_ && output.dtype() == input.dtype(),
                    "gtopk: all_gather_into_tensor needs ", size_, " x ", input.numel(),
                    " elements of ", input.dtype(), " as output, given ", output.numel(), " of ",
                    output.dtype());
  const Contiguous at = destination(output, "all_gather_into_tensor",
                                    staging_of(output, std::nullopt, kShortAllGather));
  const Buffer all = at.buffer(type_to_move(input));
  Buffers buffers;
  const std::uint64_t per_rank = all.count / static_cast<std::uint64_t>(size_);
  for (std::uint64_t begin = 0; buffers.size() < static_cast<std::size_t>(size_);
       begin += per_rank) {
    buffers.push_back(part_of(all, begin, per_rank));
  }
  const Bytes own = buffers[static_cast<std::size_t>(rank_)].bytes();
  // FSDP gathers from the output itself, so nothing needs copying.
  const bool there = lies_in_order(input) && own.data() == input.const_data_ptr();
  if (!there && !at.tensor.device().is_cpu()) {
    copy_elements(at.memory.view(-1).narrow(0, rank_ * input.numel(), input.numel()), input);
  } else if (!there) {
    std::ranges::copy(contiguous(input).read(all.dtype).bytes().host(), own.host().begin());
  }
  auto work =
      c10::make_intrusive<GtopkWork>(rank_, OpType::_ALLGATHER_BASE, "gtopk:_all_gather_base",
                                     std::vector{input}, std::vector{at}, std::vector{output});
  return run(std::move(work), opts.timeout, [&] { return all_gather(buffers); });
}

WorkPointer GtopkBackend::barrier(const c10d::BarrierOptions& opts) {
  const NotesError noting(window_);
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::BARRIER, "gtopk:barrier",
                                             std::vector<at::Tensor>{}, std::vector<Contiguous>{},
                                             std::vector<at::Tensor>{});
  work->end_after_earlier();
  return run(std::move(work), opts.timeout, [&] { return gtopk::barrier(); });
}

void GtopkBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) {
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::BARRIER, "gtopk:monitored_barrier",
                                             std::vector<at::Tensor>{}, std::vector<Contiguous>{},
                                             std::vector<at::Tensor>{});
  const WorkPointer running =
      run(std::move(work), opts.timeout, [&] { return monitored_barrier(); });
  const WithoutGil without_gil;
  running->wait();
}

void GtopkBackend::startCoalescing() { window_.open(); }

WorkPointer GtopkBackend::endCoalescing() {
  return c10::make_intrusive<CoalescedWork>(rank_, window_.close());
}

WorkPointer GtopkBackend::send(std::vector<at::Tensor>& tensors, int to, int tag) {
  const NotesError noting(window_);
  const at::Tensor& tensor = only(tensors, "send");
  const Contiguous at = contiguous(tensor, staging_of(tensor, to));
  // The memory is only kept alive; nothing is copied back.
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::SEND, "gtopk:send", tensors,
                                             std::vector{Contiguous{at.memory, at.memory}},
                                             std::vector<at::Tensor>{});
  return run(std::move(work), c10d::kUnsetTimeout, [&] {
    return gtopk::send(at.read(type_to_move(tensor)), static_cast<std::uint32_t>(to), tag);
  });
}

WorkPointer GtopkBackend::recv(std::vector<at::Tensor>& tensors, int from, int tag) {
  const NotesError noting(window_);
  const at::Tensor& tensor = only(tensors, "recv");
  const Contiguous at = destination(tensor, "recv", staging_of(tensor, from));
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::RECV, "gtopk:recv", tensors,
                                             std::vector{at}, tensors);
  work->source() = static_cast<std::uint32_t>(from);
  return run(std::move(work), c10d::kUnsetTimeout, [&] {
    return gtopk::recv(at.buffer(type_to_move(tensor)), static_cast<std::uint32_t>(from), tag);
  });
}

WorkPointer GtopkBackend::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  const NotesError noting(window_);
  const at::Tensor& tensor = only(tensors, "recv");
  const Contiguous at = destination(tensor, "recv", staging_of(tensor));
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::RECVANYSOURCE, "gtopk:recvAnySource",
                                             tensors, std::vector{at}, tensors);
  std::uint32_t& source = work->source();  // the engine keeps the Work until the operation is
                                           // destroyed
  return run(std::move(work), c10d::kUnsetTimeout,
             [&] { return recv_any(at.buffer(type_to_move(tensor)), tag, source); });
}

WorkPointer GtopkBackend::sparse_all_reduce(const std::vector<at::Tensor>& tensors,
                                            const std::optional<at::Tensor>& residual,
                                            SparseOptions options,
                                            std::optional<std::chrono::milliseconds> timeout,
                                            const std::vector<at::Tensor>& delivered,
                                            const std::optional<at::Tensor>& state,
                                            const std::optional<at::Tensor>& momentum) {
  const NotesError noting(window_);
  check_pieces(tensors);
  std::uint64_t d = 0;
  for (const at::Tensor& tensor : tensors) {
    d += static_cast<std::uint64_t>(tensor.numel());
  }
  const DataType type = data_type(tensors.front());
  // Checks an accumulator that accompanies the tensor.
  const auto check_kept = [&](const at::Tensor& kept, const char* name) {
    check_dense(kept, (std::string("sparse_all_reduce's ") + name).c_str());
    TORCH_CHECK_VALUE(kept.device() == tensors.front().device(), "gtopk: the ", name,
                      " must be on ", tensors.front().device(), " like the tensor, given one on ",
                      kept.device());
    const auto flat = static_cast<std::int64_t>(d);
    const at::IntArrayRef shape = tensors.size() == 1 ? tensors.front().sizes() : flat;
    TORCH_CHECK_VALUE((kept.sizes() == shape || kept.sizes() == at::IntArrayRef(flat)) &&
                          data_type(kept) == accumulation_type(type),
                      "gtopk: the ", name, " must be ",
                      std::string(to_string(accumulation_type(type))), " of shape ", shape,
                      "; given ", kept.dtype(), " of shape ", kept.sizes());
  };
  std::vector<Contiguous> at;
  if (residual) {
    check_kept(*residual, "residual");
  }
  if (momentum) {
    check_kept(*momentum, "momentum");
  }
  if (state) {
    options.state = numbers_of(*state);
    at.push_back({*state, *state});
  }
  const DeviceTensors all{tensors, residual, momentum, state, d, type, !delivered.empty()};
  if (const auto step = on_device(all, options)) {
    return sparse_all_reduce_on_device(step, all, options, timeout.value_or(c10d::kUnsetTimeout),
                                       delivered, std::move(at));
  }
  Buffers pieces;
  for (const at::Tensor& tensor : tensors) {
    pieces.push_back(at.emplace_back(contiguous(tensor)).buffer(type));
  }
  Buffer kept;
  if (residual) {
    at.push_back(writable(*residual, "sparse_all_reduce's residual"));
    kept = at.back().buffer(accumulation_type(type));
  }
  if (momentum) {
    at.push_back(writable(*momentum, "sparse_all_reduce's momentum"));
    options.momentum = at.back().buffer(accumulation_type(type)).data;
  }
  const Delivered note = delivered_buffers(delivered, type, options, at);
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLREDUCE, "gtopk:sparse_all_reduce",
                                             tensors, std::move(at), tensors);
  if (options.gate) {
    work->wait_at_gate();
  }
  return run(std::move(work), timeout.value_or(c10d::kUnsetTimeout),
             [&] { return gtopk::sparse_all_reduce(pieces, kept, options, note); });
}

std::shared_ptr<SparseOnDevice> GtopkBackend::on_device(const DeviceTensors& tensors,
                                                        const SparseOptions& options) const {
  try {
    return SparseOnDevice::of(tensors, options, static_cast<std::uint32_t>(getSize()));
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
}

WorkPointer GtopkBackend::sparse_all_reduce_on_device(const std::shared_ptr<SparseOnDevice>& step,
                                                      const DeviceTensors& tensors,
                                                      const SparseOptions& options,
                                                      std::chrono::milliseconds timeout,
                                                      const std::vector<at::Tensor>& delivered,
                                                      std::vector<Contiguous> at) {
  const Delivered note = delivered_buffers(delivered, tensors.dtype, options, at);
  step->begin();
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLREDUCE, "gtopk:sparse_all_reduce",
                                             tensors.pieces, std::move(at), tensors.pieces);
  work->also_write([step](const c10::Stream& stream) { step->commit(stream); });
  if (options.gate) {
    work->wait_at_gate();
  }
  if (step->asks()) {
    work->works_meanwhile();
  }
  const auto number = std::make_shared<std::uint64_t>(0);
  work->also_read([step, number] { step->follow(*number); });
  return run(std::move(work), timeout, [&] { return step->collective(options, note); },
             {.number = number.get()});
}

PlanReport GtopkBackend::plan(std::uint64_t d, const at::Tensor& like, const SparseOptions& options,
                              bool anew) {
  const DataType type = data_type(like);
  // The operation shares the report, and may outlast the wait.
  const auto report = std::make_shared<PlanReport>();
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::UNKNOWN, "gtopk:plan",
                                             std::vector<at::Tensor>{}, std::vector<Contiguous>{},
                                             std::vector<at::Tensor>{});
  const WorkPointer running =
      run(std::move(work), c10d::kUnsetTimeout,
          [&] { return gtopk::plan(d, type, options, *report, anew); }, {.keepalive = report});
  running->wait();
  return *report;
}

std::optional<PlanReport> GtopkBackend::last_plan() {
  return membership()->communicator.last_plan();
}

Statistics GtopkBackend::statistics() { return membership()->communicator.statistics(); }

std::string GtopkBackend::transport() { return membership()->runtime->process->transport(); }

std::string GtopkBackend::flight_record() {
  return membership()->runtime->process->flight_record();
}

}  // namespace gtopk::torch_backend
