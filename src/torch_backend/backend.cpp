#include "torch_backend/backend.hpp"

#include <algorithm>
#include <utility>

#include "torch_backend/contiguous.hpp"
#include "torch_backend/forks.hpp"
#include "torch_backend/store.hpp"
#include "torch_backend/tensors.hpp"

namespace gtopk::torch_backend {
namespace {

using c10d::OpType;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

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
    : Backend(rank, size),
      options_(c10::make_intrusive<Options>("gtopk", timeout)),
      error_(std::make_shared<GroupError>(c10d::ErrorType::SUCCESS)),
      forks_(forks()) {
  options_->group_name = group_name;
  // Whoever is the last to let go of it waits for others' callbacks. In a forked child it is
  // leaked: its threads are not there, and its network is the parent's.
  const auto leave = [forks_before = forks_](Membership* membership) {
    std::unique_ptr<Membership> last(membership);
    if (forks_before != forks()) {
      static_cast<void>(last.release());
      return;
    }
    const WithoutGil without_gil;
    last.reset();
  };
  try {
    const Meeting meeting{std::make_shared<TorchStore>(store),
                          std::make_shared<TorchStore>(job_store(store)),
                          group_name,
                          static_cast<std::uint32_t>(rank),
                          static_cast<std::uint32_t>(size),
                          timeout};
    membership_.reset(std::make_unique<Membership>(Runtime::get(), meeting).release(), leave);
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
  init();
}

GtopkBackend::~GtopkBackend() { shutdown(); }

void GtopkBackend::shutdown() {
  if (forks_ != forks()) return;  // the child's mutex may be locked for ever
  std::shared_ptr<Membership> last;
  const std::lock_guard lock(mutex_);
  last.swap(membership_);
}

void GtopkBackend::abort() {
  const WithoutGil without_gil;
  check_not_forked();
  std::shared_ptr<Membership> held;
  {
    const std::lock_guard lock(mutex_);
    held = membership_;
  }
  if (held) held->communicator.abort("abort() was called");
}

void GtopkBackend::check_not_forked() const {
  try {
    check_not_forked_since(forks_);
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
}

void GtopkBackend::check_member() const {
  if (membership_) return;
  rethrow_for_python(Error(ErrorKind::kAborted,
                           "the process group '" + options_->group_name + "' has been destroyed"));
}

std::shared_ptr<GtopkBackend::Membership> GtopkBackend::membership() {
  check_not_forked();
  const std::lock_guard lock(mutex_);
  check_member();
  return membership_;
}

void GtopkBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  membership()->communicator.set_timeout(timeout);
}

c10d::ErrorType GtopkBackend::getError() {
  const WithoutGil without_gil;
  check_not_forked();
  std::shared_ptr<Membership> held;
  {
    const std::lock_guard lock(mutex_);
    held = membership_;
  }
  const std::optional<ErrorKind> failure = held ? held->communicator.failure() : std::nullopt;
  auto none = c10d::ErrorType::SUCCESS;
  if (failure) error_->compare_exchange_strong(none, error_type(*failure));
  return *error_;
}

WorkPointer GtopkBackend::run(c10::intrusive_ptr<GtopkWork> work, std::chrono::milliseconds timeout,
                              const Start& start) {
  check_not_forked();
  const bool collective = !c10d::isP2POp(work->retrieveOpType());
  const std::lock_guard lock(mutex_);
  check_member();
  try {
    start(membership_->communicator, work->call(membership_->runtime->completer, timeout,
                                                collective ? sequence_.load() : 0, error_));
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
  if (collective) ++sequence_;
  return work;
}

WorkPointer GtopkBackend::allreduce(std::vector<at::Tensor>& tensors,
                                    const c10d::AllreduceOptions& opts) {
  const Contiguous at = writable(only(tensors, "all_reduce"), "all_reduce");
  const DataType type = data_type(at.memory);
  const ReduceOp op = reduce_op(opts.reduceOp);
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLREDUCE, "gtopk:all_reduce", tensors,
                                             std::vector{at}, tensors);
  const auto d = static_cast<std::uint64_t>(at.memory.numel());
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.all_reduce(at.bytes().data(), d, type, op, std::move(call));
  });
}

WorkPointer GtopkBackend::broadcast(std::vector<at::Tensor>& tensors,
                                    const c10d::BroadcastOptions& opts) {
  const Contiguous at = writable(only(tensors, "broadcast"), "broadcast");
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::BROADCAST, "gtopk:broadcast", tensors,
                                             std::vector{at}, tensors);
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.broadcast(at.bytes(), static_cast<std::uint32_t>(opts.rootRank), std::move(call),
                           type_to_move(at.memory));
  });
}

WorkPointer GtopkBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                    std::vector<at::Tensor>& inputs,
                                    const c10d::AllgatherOptions& opts) {
  const at::Tensor& input = only(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1 && outputs[0].size() == static_cast<std::size_t>(size_),
                    "gtopk: all_gather wants one list of ", size_, " output tensors");
  std::vector<Contiguous> at;
  std::vector<std::span<std::byte>> rooms;
  for (const at::Tensor& output : outputs[0]) {
    check_dense_cpu(output, "all_gather");
    TORCH_CHECK_VALUE(output.numel() == input.numel() && output.dtype() == input.dtype(),
                      "gtopk: all_gather wants outputs like the input (", input.numel(), " of ",
                      input.dtype(), "), given ", output.numel(), " of ", output.dtype());
    rooms.push_back(at.emplace_back(writable(output, "all_gather")).bytes());
  }
  copy_elements(at[static_cast<std::size_t>(rank_)].memory, input);
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLGATHER, "gtopk:all_gather", inputs,
                                             std::move(at), outputs[0]);
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.all_gather(std::move(rooms), std::move(call), type_to_move(input));
  });
}

WorkPointer GtopkBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& opts) {
  check_dense_cpu(input, "all_gather_into_tensor");
  check_dense_cpu(output, "all_gather_into_tensor");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size_ && output.dtype() == input.dtype(),
                    "gtopk: all_gather_into_tensor wants ", size_, " x ", input.numel(), " of ",
                    input.dtype(), " as output, given ", output.numel(), " of ", output.dtype());
  const Contiguous at = writable(output, "all_gather_into_tensor");
  std::vector<std::span<std::byte>> rooms;
  const std::size_t room = at.bytes().size() / static_cast<std::size_t>(size_);
  for (std::size_t begin = 0; rooms.size() < static_cast<std::size_t>(size_); begin += room) {
    rooms.push_back(at.bytes().subspan(begin, room));
  }
  const std::span<std::byte> own = rooms[static_cast<std::size_t>(rank_)];
  const Contiguous mine = contiguous(input);
  // FSDP gathers out of the output itself: then there is nothing to copy.
  if (own.data() != mine.memory.const_data_ptr()) std::ranges::copy(mine.read(), own.begin());
  auto work =
      c10::make_intrusive<GtopkWork>(rank_, OpType::_ALLGATHER_BASE, "gtopk:_all_gather_base",
                                     std::vector{input}, std::vector{at}, std::vector{output});
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.all_gather(std::move(rooms), std::move(call), type_to_move(input));
  });
}

WorkPointer GtopkBackend::barrier(const c10d::BarrierOptions& opts) {
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::BARRIER, "gtopk:barrier",
                                             std::vector<at::Tensor>{}, std::vector<Contiguous>{},
                                             std::vector<at::Tensor>{});
  return run(std::move(work), opts.timeout,
             [&](Communicator& communicator, Call call) { communicator.barrier(std::move(call)); });
}

WorkPointer GtopkBackend::send(std::vector<at::Tensor>& tensors, int to, int tag) {
  const Contiguous at = contiguous(only(tensors, "send"));
  // Held only: nothing is to be copied back.
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::SEND, "gtopk:send", tensors,
                                             std::vector{Contiguous{at.memory, at.memory}},
                                             std::vector<at::Tensor>{});
  return run(std::move(work), c10d::kUnsetTimeout, [&](Communicator& communicator, Call call) {
    communicator.send(at.read(), static_cast<std::uint32_t>(to), tag, std::move(call));
  });
}

WorkPointer GtopkBackend::recv(std::vector<at::Tensor>& tensors, int from, int tag) {
  const Contiguous at = writable(only(tensors, "recv"), "recv");
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::RECV, "gtopk:recv", tensors,
                                             std::vector{at}, tensors);
  return run(std::move(work), c10d::kUnsetTimeout, [&](Communicator& communicator, Call call) {
    communicator.recv(at.bytes(), static_cast<std::uint32_t>(from), tag, std::move(call));
  });
}

WorkPointer GtopkBackend::sparse_all_reduce(const at::Tensor& tensor,
                                            const std::optional<at::Tensor>& residual,
                                            std::uint64_t k, const std::string& algorithm,
                                            const std::string& select, const std::string& put_back,
                                            const c10d::ReduceOp& op,
                                            std::optional<std::chrono::milliseconds> timeout) {
  const std::vector<at::Tensor> tensors{tensor};
  std::vector<Contiguous> at{writable(only(tensors, "sparse_all_reduce"), "sparse_all_reduce")};
  const DataType type = data_type(tensor);
  SparseOptions options;
  options.k = k;
  options.algorithm = algorithm_named(algorithm);
  options.selector = selector_named(select);
  options.put_back = put_back_named(put_back);
  options.op = reduce_op(op);
  if (residual) {
    static constexpr const char* kWhat = "sparse_all_reduce's residual";
    check_dense_cpu(*residual, kWhat);
    TORCH_CHECK_VALUE(
        residual->sizes() == tensor.sizes() && data_type(*residual) == accumulation_type(type),
        "gtopk: the residual must be ", std::string(to_string(accumulation_type(type))),
        " of shape ", tensor.sizes(), "; given ", residual->dtype(), " of shape ",
        residual->sizes());
    at.push_back(writable(*residual, kWhat));
  }
  const auto d = static_cast<std::uint64_t>(tensor.numel());
  void* const data = at.front().bytes().data();
  void* const residual_data = residual ? at.back().bytes().data() : nullptr;
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLREDUCE, "gtopk:sparse_all_reduce",
                                             tensors, std::move(at), tensors);
  return run(std::move(work), timeout.value_or(c10d::kUnsetTimeout),
             [&](Communicator& communicator, Call call) {
               communicator.sparse_all_reduce(data, residual_data, d, type, options,
                                              std::move(call));
             });
}

Statistics GtopkBackend::statistics() { return membership()->communicator.statistics(); }

std::string GtopkBackend::transport() { return membership()->runtime->process->transport(); }

}  // namespace gtopk::torch_backend
