#include "torch_backend/backend.hpp"

#include <utility>

#include "torch_backend/store.hpp"
#include "torch_backend/tensors.hpp"

namespace gtopk::torch_backend {
namespace {

using c10d::OpType;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/// The core works on contiguous memory; a strided tensor is copied there, and the result back.
struct InPlace {
  explicit InPlace(const at::Tensor& of) : tensor(of), memory(of.contiguous()) {}
  [[nodiscard]] std::function<void()> copy_back() const {
    if (memory.is_same(tensor)) return nullptr;
    return [tensor = tensor, memory = memory] { tensor.copy_(memory); };
  }
  at::Tensor tensor;
  at::Tensor memory;
};

/// Releases the GIL where this thread holds it: what follows waits for threads that may want it.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

}  // namespace

GtopkBackend::GtopkBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                           std::chrono::milliseconds timeout, const std::string& group_name)
    : Backend(rank, size), options_(c10::make_intrusive<Options>("gtopk", timeout)) {
  options_->group_name = group_name;
  try {
    runtime_ = Runtime::get();
    communicator_ = std::make_shared<Communicator>(
        runtime_->process,
        Meeting{std::make_shared<TorchStore>(store), std::make_shared<TorchStore>(job_store(store)),
                group_name, static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size),
                timeout});
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
  init();
}

GtopkBackend::~GtopkBackend() { shutdown(); }

void GtopkBackend::shutdown() {
  const WithoutGil without_gil;
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<Runtime> runtime;
  {
    const std::lock_guard lock(mutex_);
    communicator.swap(communicator_);
    runtime.swap(runtime_);
  }
  communicator.reset();
  runtime.reset();
}

void GtopkBackend::abort() {
  const WithoutGil without_gil;
  std::shared_ptr<Communicator> communicator;
  {
    const std::lock_guard lock(mutex_);
    communicator = communicator_;
  }
  if (communicator) communicator->abort("abort() was called");
}

std::shared_ptr<Communicator> GtopkBackend::communicator() {
  const std::lock_guard lock(mutex_);
  if (!communicator_) {
    rethrow_for_python(Error(ErrorKind::kAborted, "the process group '" + options_->group_name +
                                                      "' has been destroyed"));
  }
  return communicator_;
}

void GtopkBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  communicator()->set_timeout(timeout);
}

c10d::ErrorType GtopkBackend::getError() {
  return failed_ ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

WorkPointer GtopkBackend::run(c10::intrusive_ptr<GtopkWork> work, bool collective,
                              std::chrono::milliseconds timeout, const Start& start,
                              std::function<void()> finally) {
  std::shared_ptr<Runtime> runtime;
  {
    const std::lock_guard lock(mutex_);
    runtime = runtime_;
  }
  const std::shared_ptr<Communicator> communicator = this->communicator();
  try {
    start(*communicator, work->call(runtime->completer, timeout, std::move(finally)));
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
  if (collective) work->set_sequence(sequence_++);
  return work;
}

WorkPointer GtopkBackend::allreduce(std::vector<at::Tensor>& tensors,
                                    const c10d::AllreduceOptions& opts) {
  const InPlace at(only(tensors, "all_reduce"));
  const DataType type = data_type(at.memory);
  const ReduceOp op = reduce_op(opts.reduceOp);
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLREDUCE, "gtopk:all_reduce", tensors,
                                             std::vector{at.memory}, tensors);
  const auto d = static_cast<std::uint64_t>(at.memory.numel());
  void* const data = at.memory.mutable_data_ptr();
  return run(
      std::move(work), true, opts.timeout,
      [&](Communicator& communicator, Call call) {
        communicator.all_reduce(data, d, type, op, std::move(call));
      },
      at.copy_back());
}

WorkPointer GtopkBackend::broadcast(std::vector<at::Tensor>& tensors,
                                    const c10d::BroadcastOptions& opts) {
  const InPlace at(only(tensors, "broadcast"));
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::BROADCAST, "gtopk:broadcast", tensors,
                                             std::vector{at.memory}, tensors);
  return run(
      std::move(work), true, opts.timeout,
      [&](Communicator& communicator, Call call) {
        communicator.broadcast(bytes_of(at.memory), static_cast<std::uint32_t>(opts.rootRank),
                               std::move(call));
      },
      at.copy_back());
}

WorkPointer GtopkBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                    std::vector<at::Tensor>& inputs,
                                    const c10d::AllgatherOptions& opts) {
  const at::Tensor& input = only(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1 && outputs[0].size() == static_cast<std::size_t>(size_),
                    "gtopk: all_gather wants one list of ", size_, " output tensors");
  std::vector<InPlace> at;
  std::vector<at::Tensor> memory;
  std::vector<std::span<std::byte>> rooms;
  for (const at::Tensor& output : outputs[0]) {
    check_dense_cpu(output, "all_gather");
    TORCH_CHECK_VALUE(output.numel() == input.numel() && output.dtype() == input.dtype(),
                      "gtopk: all_gather wants outputs like the input (", input.numel(), " of ",
                      input.dtype(), "), given ", output.numel(), " of ", output.dtype());
    memory.push_back(at.emplace_back(output).memory);
    rooms.push_back(bytes_of(memory.back()));
  }
  memory[static_cast<std::size_t>(rank_)].view(-1).copy_(input.reshape(-1));
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLGATHER, "gtopk:all_gather", inputs,
                                             memory, outputs[0]);
  return run(
      std::move(work), true, opts.timeout,
      [&](Communicator& communicator, Call call) {
        communicator.all_gather(std::move(rooms), std::move(call));
      },
      [at = std::move(at)] {
        for (const InPlace& place : at) {
          if (const auto copy = place.copy_back()) copy();
        }
      });
}

WorkPointer GtopkBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& opts) {
  check_dense_cpu(input, "all_gather_into_tensor");
  check_dense_cpu(output, "all_gather_into_tensor");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size_ && output.dtype() == input.dtype(),
                    "gtopk: all_gather_into_tensor wants ", size_, " x ", input.numel(), " of ",
                    input.dtype(), " as output, given ", output.numel(), " of ", output.dtype());
  const InPlace at(output);
  const at::Tensor flat = at.memory.view({size_, input.numel()});
  const at::Tensor own = flat.select(0, rank_);
  // FSDP gathers out of the output itself: then there is nothing to copy.
  if (own.const_data_ptr() != input.const_data_ptr()) own.copy_(input.reshape(-1));
  std::vector<std::span<std::byte>> rooms;
  rooms.reserve(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) rooms.push_back(bytes_of(flat.select(0, rank)));
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::_ALLGATHER_BASE,
                                             "gtopk:_all_gather_base", std::vector{input},
                                             std::vector{at.memory}, std::vector{output});
  return run(
      std::move(work), true, opts.timeout,
      [&](Communicator& communicator, Call call) {
        communicator.all_gather(std::move(rooms), std::move(call));
      },
      at.copy_back());
}

WorkPointer GtopkBackend::barrier(const c10d::BarrierOptions& opts) {
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::BARRIER, "gtopk:barrier",
                                             std::vector<at::Tensor>{}, std::vector<at::Tensor>{},
                                             std::vector<at::Tensor>{});
  return run(std::move(work), true, opts.timeout,
             [&](Communicator& communicator, Call call) { communicator.barrier(std::move(call)); });
}

WorkPointer GtopkBackend::send(std::vector<at::Tensor>& tensors, int to, int tag) {
  const at::Tensor memory = only(tensors, "send").contiguous();
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::SEND, "gtopk:send", tensors,
                                             std::vector{memory}, std::vector<at::Tensor>{});
  return run(
      std::move(work), false, c10d::kUnsetTimeout, [&](Communicator& communicator, Call call) {
        communicator.send(bytes_of(memory), static_cast<std::uint32_t>(to), tag, std::move(call));
      });
}

WorkPointer GtopkBackend::recv(std::vector<at::Tensor>& tensors, int from, int tag) {
  const InPlace at(only(tensors, "recv"));
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::RECV, "gtopk:recv", tensors,
                                             std::vector{at.memory}, tensors);
  return run(
      std::move(work), false, c10d::kUnsetTimeout,
      [&](Communicator& communicator, Call call) {
        communicator.recv(bytes_of(at.memory), static_cast<std::uint32_t>(from), tag,
                          std::move(call));
      },
      at.copy_back());
}

WorkPointer GtopkBackend::sparse_all_reduce(const at::Tensor& tensor,
                                            const std::optional<at::Tensor>& residual,
                                            std::uint64_t k, const std::string& algorithm,
                                            const std::string& select, const std::string& put_back,
                                            const c10d::ReduceOp& op,
                                            std::optional<std::chrono::milliseconds> timeout) {
  const std::vector<at::Tensor> tensors{tensor};
  const InPlace at(only(tensors, "sparse_all_reduce"));
  const DataType type = data_type(at.memory);
  SparseOptions options;
  options.k = k;
  options.algorithm = algorithm_named(algorithm);
  options.selector = selector_named(select);
  options.put_back = put_back_named(put_back);
  options.op = reduce_op(op);
  std::vector<at::Tensor> held{at.memory};
  std::optional<InPlace> residual_at;
  void* residual_data = nullptr;
  if (residual) {
    check_dense_cpu(*residual, "sparse_all_reduce's residual");
    TORCH_CHECK_VALUE(
        residual->sizes() == tensor.sizes() && data_type(*residual) == accumulation_type(type),
        "gtopk: the residual must be ", std::string(to_string(accumulation_type(type))),
        " of shape ", tensor.sizes(), "; given ", residual->dtype(), " of shape ",
        residual->sizes());
    residual_at.emplace(*residual);
    held.push_back(residual_at->memory);
    residual_data = residual_at->memory.mutable_data_ptr();
  }
  std::function<void()> copy_back = at.copy_back();
  if (residual_at) {
    if (auto copy_residual = residual_at->copy_back()) {
      copy_back = [copy_tensor = std::move(copy_back), copy_residual = std::move(copy_residual)] {
        if (copy_tensor) copy_tensor();
        copy_residual();
      };
    }
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLREDUCE, "gtopk:sparse_all_reduce",
                                             tensors, std::move(held), tensors);
  const auto d = static_cast<std::uint64_t>(at.memory.numel());
  void* const data = at.memory.mutable_data_ptr();
  return run(
      std::move(work), true, timeout.value_or(c10d::kUnsetTimeout),
      [&](Communicator& communicator, Call call) {
        communicator.sparse_all_reduce(data, residual_data, d, type, options, std::move(call));
      },
      std::move(copy_back));
}

Statistics GtopkBackend::statistics() { return communicator()->statistics(); }

std::string GtopkBackend::transport() {
  const std::lock_guard lock(mutex_);
  return runtime_ ? runtime_->process->transport() : std::string();
}

}  // namespace gtopk::torch_backend
