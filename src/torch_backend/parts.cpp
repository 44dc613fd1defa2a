// Torch backend: c10d's collectives that reduce or move parts.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "src/torch_backend/backend.hpp"
#include "src/torch_backend/contiguous.hpp"
#include "src/torch_backend/tensors.hpp"

namespace gtopk::torch_backend {
namespace {

using c10d::OpType;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/// Kept as long as the network needs it; nothing is copied back.
Contiguous held(const Contiguous& read) { return {read.memory, read.memory}; }

Segment segment(const Contiguous& at) {
  return {at.bytes().data(), static_cast<std::uint64_t>(at.memory.numel())};
}

/// `count` segments of equal size.
std::vector<Segment> equal_segments(const Contiguous& at, int count) {
  std::vector<Segment> parts;
  parts.reserve(static_cast<std::size_t>(count));
  const std::size_t bytes = at.bytes().size() / static_cast<std::size_t>(count);
  const auto elements = static_cast<std::uint64_t>(at.memory.numel() / count);
  for (int part = 0; part < count; ++part) {
    parts.push_back({at.bytes().data() + static_cast<std::size_t>(part) * bytes, elements});
  }
  return parts;
}

void check_list(const std::vector<at::Tensor>& tensors, int size, at::ScalarType dtype,
                const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == static_cast<std::size_t>(size), "gtopk: ", what, " needs ",
                    size, " tensors in its list, one per rank, given ", tensors.size());
  for (const at::Tensor& tensor : tensors) {
    check_dense(tensor, what);
    TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, "gtopk: ", what,
                      " needs tensors of one dtype, given ", dtype, " and ", tensor.scalar_type());
  }
}

/// The list that the root of a gather or scatter passes; the others pass none.
std::vector<at::Tensor> list_on_root(const std::vector<std::vector<at::Tensor>>& lists, bool root,
                                     at::ScalarType dtype, int size, const char* what) {
  if (!root) {
    TORCH_CHECK_VALUE(lists.empty() || (lists.size() == 1 && lists.front().empty()),
                      "gtopk: ", what, " takes a list of tensors only on the root");
    return {};
  }
  TORCH_CHECK_VALUE(lists.size() == 1, "gtopk: ", what, " needs one list of tensors on the root, ",
                    "given ", lists.size());
  check_list(lists.front(), size, dtype, what);
  return lists.front();
}

/// One piece per rank of a tensor cut along its first dimension: into the numbers of rows that
/// `splits` says, or into equal ones.
std::vector<std::span<std::byte>> split_rows(const Contiguous& at, int size,
                                             const std::vector<int64_t>& splits,
                                             const char* which) {
  const at::IntArrayRef shape = at.memory.sizes();
  TORCH_CHECK_VALUE(!shape.empty(), "gtopk: all_to_all_single needs an ", which,
                    " of one dimension or more, given a scalar");
  const std::int64_t rows = shape[0];
  std::vector<int64_t> counts = splits;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, "gtopk: all_to_all_single without split sizes needs an ",
                      which, " whose rows ", size, " ranks divide, given ", rows);
    counts.assign(static_cast<std::size_t>(size), rows / size);
  }
  std::int64_t sum = 0;
  for (const int64_t count : counts) {
    TORCH_CHECK_VALUE(count >= 0, "gtopk: all_to_all_single with an ", which, " split of ", count);
    sum += count;
  }
  TORCH_CHECK_VALUE(counts.size() == static_cast<std::size_t>(size) && sum == rows,
                    "gtopk: all_to_all_single needs ", size, " ", which, " splits that add up to ",
                    rows, " rows, given ", counts);
  const std::size_t row = rows == 0 ? 0 : at.bytes().size() / static_cast<std::size_t>(rows);
  std::vector<std::span<std::byte>> pieces;
  std::size_t begin = 0;
  for (const int64_t count : counts) {
    pieces.push_back(at.bytes().subspan(begin, static_cast<std::size_t>(count) * row));
    begin += pieces.back().size();
  }
  return pieces;
}

}  // namespace

WorkPointer GtopkBackend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ReduceScatterOptions& opts) {
  const ClosesOnError closing(window_);
  static constexpr const char* kWhat = "reduce_scatter";
  const at::Tensor& output = only(outputs, kWhat);
  TORCH_CHECK_VALUE(inputs.size() == 1, "gtopk: reduce_scatter takes one list of inputs, given ",
                    inputs.size());
  check_list(inputs[0], size_, output.scalar_type(), kWhat);
  const at::Tensor& own = inputs[0][static_cast<std::size_t>(rank_)];
  TORCH_CHECK_VALUE(output.numel() == own.numel(), "gtopk: reduce_scatter needs an output like ",
                    "input ", rank_, ", of ", own.numel(), " elements, given ", output.numel());
  const DataType type = data_type(output);
  const auto [op, factor] = reduction(opts.reduceOp);
  const Contiguous result = room(output, kWhat);
  std::vector<Contiguous> at{result};
  std::vector<Segment> parts;
  for (const at::Tensor& input : inputs[0]) {
    parts.push_back(segment(at.emplace_back(held(contiguous(input)))));
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::REDUCE_SCATTER, "gtopk:reduce_scatter",
                                             inputs[0], std::move(at), outputs);
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.run(gtopk::reduce_scatter(std::move(parts), segment(result), type, op, factor),
                     std::move(call));
  });
}

WorkPointer GtopkBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  const ClosesOnError closing(window_);
  static constexpr const char* kWhat = "reduce_scatter_tensor";
  check_dense(input, kWhat);
  check_dense(output, kWhat);
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_ && output.dtype() == input.dtype(),
                    "gtopk: reduce_scatter_tensor needs ", size_, " x ", output.numel(), " of ",
                    output.dtype(), " as input, given ", input.numel(), " of ", input.dtype());
  const DataType type = data_type(output);
  const auto [op, factor] = reduction(opts.reduceOp);
  const Contiguous result = room(output, kWhat);
  const Contiguous whole = held(contiguous(input));
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::_REDUCE_SCATTER_BASE,
                                             "gtopk:_reduce_scatter_base", std::vector{input},
                                             std::vector{result, whole}, std::vector{output});
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.run(
        gtopk::reduce_scatter(equal_segments(whole, size_), segment(result), type, op, factor),
        std::move(call));
  });
}

WorkPointer GtopkBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits,
                                        const c10d::AllToAllOptions& opts) {
  const ClosesOnError closing(window_);
  static constexpr const char* kWhat = "all_to_all_single";
  check_dense(input, kWhat);
  check_dense(output, kWhat);
  TORCH_CHECK_VALUE(output.dtype() == input.dtype(), "gtopk: ", kWhat,
                    " needs tensors of one dtype, given ", input.dtype(), " and ", output.dtype());
  const Contiguous sent = held(contiguous(input));
  const Contiguous received = room(output, kWhat);
  std::vector<std::span<std::byte>> parts = split_rows(sent, size_, input_splits, "input");
  std::vector<std::span<std::byte>> rooms = split_rows(received, size_, output_splits, "output");
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLTOALL_BASE, "gtopk:all_to_all",
                                             std::vector{input}, std::vector{sent, received},
                                             std::vector{output});
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.run(
        all_to_all({parts.begin(), parts.end()}, std::move(rooms), type_to_move(input)),
        std::move(call));
  });
}

WorkPointer GtopkBackend::alltoall(std::vector<at::Tensor>& outputs,
                                   std::vector<at::Tensor>& inputs,
                                   const c10d::AllToAllOptions& opts) {
  const ClosesOnError closing(window_);
  static constexpr const char* kWhat = "all_to_all";
  TORCH_CHECK_VALUE(!inputs.empty(), "gtopk: ", kWhat, " of no tensors");
  check_list(inputs, size_, inputs.front().scalar_type(), kWhat);
  check_list(outputs, size_, inputs.front().scalar_type(), kWhat);
  std::vector<Contiguous> at;
  std::vector<std::span<const std::byte>> parts;
  std::vector<std::span<std::byte>> rooms;
  parts.reserve(inputs.size());
  rooms.reserve(outputs.size());
  for (const at::Tensor& input : inputs) {
    parts.push_back(at.emplace_back(held(contiguous(input))).read());
  }
  for (const at::Tensor& output : outputs) {
    rooms.push_back(at.emplace_back(room(output, kWhat)).bytes());
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLTOALL, "gtopk:all_to_all", inputs,
                                             std::move(at), outputs);
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.run(all_to_all(std::move(parts), std::move(rooms), type_to_move(inputs.front())),
                     std::move(call));
  });
}

WorkPointer GtopkBackend::reduce(std::vector<at::Tensor>& tensors,
                                 const c10d::ReduceOptions& opts) {
  const ClosesOnError closing(window_);
  const at::Tensor& tensor = only(tensors, "reduce");
  const DataType type = data_type(tensor);
  const auto [op, factor] = reduction(opts.reduceOp);
  const bool root = rank_ == opts.rootRank;
  const Contiguous at = root ? writable(tensor, "reduce") : held(contiguous(tensor));
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::REDUCE, "gtopk:reduce", tensors,
                                             std::vector{at}, tensors);
  const Segment data = segment(at);
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.run(gtopk::reduce(data.data, data.size, static_cast<std::uint32_t>(opts.rootRank),
                                   type, op, factor),
                     std::move(call));
  });
}

WorkPointer GtopkBackend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                 std::vector<at::Tensor>& inputs, const c10d::GatherOptions& opts) {
  const ClosesOnError closing(window_);
  static constexpr const char* kWhat = "gather";
  const at::Tensor& input = only(inputs, kWhat);
  const std::vector<at::Tensor> list =
      list_on_root(outputs, rank_ == opts.rootRank, input.scalar_type(), size_, kWhat);
  const Contiguous sent = held(contiguous(input));
  std::vector<Contiguous> at{sent};
  std::vector<std::span<std::byte>> rooms;
  rooms.reserve(list.size());
  for (const at::Tensor& output : list) {
    rooms.push_back(at.emplace_back(room(output, kWhat)).bytes());
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::GATHER, "gtopk:gather", inputs,
                                             std::move(at), list);
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.run(gtopk::gather(sent.read(), std::move(rooms),
                                   static_cast<std::uint32_t>(opts.rootRank), type_to_move(input)),
                     std::move(call));
  });
}

#if TORCH_VERSION_MINOR >= 14
WorkPointer GtopkBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                        const c10d::GatherOptions& opts) {
  const ClosesOnError closing(window_);
  const BelowAutograd below;
  std::vector<at::Tensor> inputs{input};
  std::vector<std::vector<at::Tensor>> outputs;
  if (rank_ == opts.rootRank) {
    TORCH_CHECK_VALUE(output.is_contiguous() && output.numel() == input.numel() * size_,
                      "gtopk: gather_single needs a contiguous output of ", size_, " x ",
                      input.numel(), " elements, given ", output.numel());
    outputs.push_back(output.view({size_, input.numel()}).unbind());
  }
  return gather(outputs, inputs, opts);
}
#endif

WorkPointer GtopkBackend::scatter(std::vector<at::Tensor>& outputs,
                                  std::vector<std::vector<at::Tensor>>& inputs,
                                  const c10d::ScatterOptions& opts) {
  const ClosesOnError closing(window_);
  static constexpr const char* kWhat = "scatter";
  const at::Tensor& output = only(outputs, kWhat);
  const std::vector<at::Tensor> list =
      list_on_root(inputs, rank_ == opts.rootRank, output.scalar_type(), size_, kWhat);
  const Contiguous received = room(output, kWhat);
  std::vector<Contiguous> at{received};
  std::vector<std::span<const std::byte>> parts;
  parts.reserve(list.size());
  for (const at::Tensor& input : list) {
    parts.push_back(at.emplace_back(held(contiguous(input))).read());
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::SCATTER, "gtopk:scatter", list,
                                             std::move(at), outputs);
  return run(std::move(work), opts.timeout, [&](Communicator& communicator, Call call) {
    communicator.run(
        gtopk::scatter(std::move(parts), received.bytes(),
                       static_cast<std::uint32_t>(opts.rootRank), type_to_move(output)),
        std::move(call));
  });
}

}  // namespace gtopk::torch_backend
