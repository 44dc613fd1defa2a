// Torch backend: the collectives of c10d that reduce or move parts.
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

/// Keeps memory for as long as the network needs it; nothing is copied back.
Contiguous held(const Contiguous& read) { return {read.memory, read.memory}; }

/// Cuts a buffer into `count` parts of equal size.
Buffers equal_parts(const Buffer& all, int count) {
  Buffers parts;
  const std::uint64_t each = all.count / static_cast<std::uint64_t>(count);
  for (int part = 0; part < count; ++part) {
    parts.push_back(part_of(all, static_cast<std::uint64_t>(part) * each, each));
  }
  return parts;
}

/// Returns the elements of contiguous memory that a part covers.
at::Tensor elements_at(const at::Tensor& memory, const ConstBuffer& part) {
  const BelowAutograd below;
  const auto size = static_cast<std::ptrdiff_t>(memory.element_size());
  const auto* const first = static_cast<const std::byte*>(memory.const_data_ptr());
  const ConstBytes bytes = part.bytes();
  return memory.view(-1).narrow(0, (bytes.data() - first) / size,
                                static_cast<std::ptrdiff_t>(bytes.size()) / size);
}

/// Returns the part that this rank sends to itself. On a device this function copies it to its
/// destination, because the core copies nothing there, and returns the destination for the core.
ConstBuffer kept(const ConstBuffer& part, const at::Tensor& from, const Buffer& output,
                 const at::Tensor& to) {
  const bool to_copy = !output.memory.is_host() && part.data != output.data &&
                       part.count == output.count && part.count != 0;
  if (!to_copy) {
    return part;
  }
  copy_elements(elements_at(to, output), elements_at(from, part));
  return output;
}

/// Returns in place only if both are in place.
Staging common(Staging one, Staging other) { return one == other ? one : Staging::kStaged; }

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

/// Returns the list that the root of a gather or scatter passes; other ranks pass none.
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

/// Cuts a tensor along its first dimension into one piece per rank: with the numbers of rows in
/// `splits`, or into equal pieces. Splits that do not fit are a RuntimeError and not a ValueError
/// like other bad arguments, because PyTorch's suite for backends expects that.
Buffers split_rows(const Contiguous& at, DataType type, int size,
                   const std::vector<int64_t>& splits, const char* which) {
  const at::IntArrayRef shape = at.memory.sizes();
  TORCH_CHECK_VALUE(!shape.empty(), "gtopk: all_to_all_single needs an ", which,
                    " of at least one dimension, given a scalar");
  const std::int64_t rows = shape[0];
  std::vector<int64_t> counts = splits;
  if (splits.empty()) {
    TORCH_CHECK(rows % size == 0, "gtopk: all_to_all_single without split sizes: the ", which,
                " does not divide equally across group size: ", rows, " rows, ", size, " ranks");
    counts.assign(static_cast<std::size_t>(size), rows / size);
  }
  std::int64_t sum = 0;
  for (const int64_t count : counts) {
    TORCH_CHECK(count >= 0, "gtopk: all_to_all_single needs splits of 0 or more, given an ", which,
                " split of ", count);
    sum += count;
  }
  TORCH_CHECK(counts.size() == static_cast<std::size_t>(size) && sum == rows,
              "gtopk: all_to_all_single needs ", size, " ", which, " splits that add up to ", rows,
              " rows, given ", counts);
  const Buffer all = at.buffer(type);
  const std::uint64_t row = rows == 0 ? 0 : all.count / static_cast<std::uint64_t>(rows);
  Buffers pieces;
  std::uint64_t begin = 0;
  for (const int64_t count : counts) {
    const std::uint64_t elements = static_cast<std::uint64_t>(count) * row;
    pieces.push_back(part_of(all, begin, elements));
    begin += elements;
  }
  return pieces;
}

}  // namespace

WorkPointer GtopkBackend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ReduceScatterOptions& opts) {
  const NotesError noting(window_);
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
  const Contiguous result = destination(output, kWhat);
  std::vector<Contiguous> at{result};
  ConstBuffers parts;
  for (const at::Tensor& input : inputs[0]) {
    parts.push_back(at.emplace_back(held(contiguous(input))).read(type));
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::REDUCE_SCATTER, "gtopk:reduce_scatter",
                                             inputs[0], std::move(at), outputs);
  return run(std::move(work), opts.timeout,
             [&] { return gtopk::reduce_scatter(parts, result.buffer(type), op, factor); });
}

WorkPointer GtopkBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  const NotesError noting(window_);
  static constexpr const char* kWhat = "reduce_scatter_tensor";
  check_dense(input, kWhat);
  check_dense(output, kWhat);
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_ && output.dtype() == input.dtype(),
                    "gtopk: reduce_scatter_tensor needs ", size_, " x ", output.numel(),
                    " elements of ", output.dtype(), " as input, given ", input.numel(), " of ",
                    input.dtype());
  const DataType type = data_type(output);
  const auto [op, factor] = reduction(opts.reduceOp);
  const Contiguous result = destination(output, kWhat);
  const Contiguous whole = held(contiguous(input));
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::_REDUCE_SCATTER_BASE,
                                             "gtopk:_reduce_scatter_base", std::vector{input},
                                             std::vector{result, whole}, std::vector{output});
  return run(std::move(work), opts.timeout, [&] {
    return gtopk::reduce_scatter(equal_parts(whole.buffer(type), size_), result.buffer(type), op,
                                 factor);
  });
}

WorkPointer GtopkBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits,
                                        const c10d::AllToAllOptions& opts) {
  const NotesError noting(window_);
  static constexpr const char* kWhat = "all_to_all_single";
  check_dense(input, kWhat);
  check_dense(output, kWhat);
  TORCH_CHECK_VALUE(output.dtype() == input.dtype(), "gtopk: ", kWhat,
                    " needs tensors of one dtype, given ", input.dtype(), " and ", output.dtype());
  const Staging staging = common(staging_of(input), staging_of(output));
  const Contiguous sent = held(contiguous(input, staging));
  const Contiguous received = destination(output, kWhat, staging);
  const DataType type = type_to_move(input);
  const Buffers given = split_rows(sent, type, size_, input_splits, "input");
  Buffers buffers = split_rows(received, type, size_, output_splits, "output");
  ConstBuffers parts;
  for (const Buffer& part : given) {
    const bool own = parts.size() == static_cast<std::size_t>(rank_);
    parts.push_back(own ? kept(part, sent.memory, buffers[parts.size()], received.memory) : part);
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLTOALL_BASE, "gtopk:all_to_all",
                                             std::vector{input}, std::vector{sent, received},
                                             std::vector{output});
  return run(std::move(work), opts.timeout, [&] { return all_to_all(parts, buffers); });
}

WorkPointer GtopkBackend::alltoall(std::vector<at::Tensor>& outputs,
                                   std::vector<at::Tensor>& inputs,
                                   const c10d::AllToAllOptions& opts) {
  const NotesError noting(window_);
  static constexpr const char* kWhat = "all_to_all";
  TORCH_CHECK_VALUE(!inputs.empty(), "gtopk: ", kWhat, " takes at least one tensor, given none");
  check_list(inputs, size_, inputs.front().scalar_type(), kWhat);
  check_list(outputs, size_, inputs.front().scalar_type(), kWhat);
  const DataType type = type_to_move(inputs.front());
  std::vector<Contiguous> at;
  ConstBuffers parts;
  Buffers buffers;
  for (int rank = 0; rank < size_; ++rank) {
    const at::Tensor& input = inputs[static_cast<std::size_t>(rank)];
    const at::Tensor& output = outputs[static_cast<std::size_t>(rank)];
    const bool own = rank == rank_;
    const Staging in =
        own ? common(staging_of(input), staging_of(output)) : staging_of(input, rank);
    const Contiguous sent = at.emplace_back(held(contiguous(input, in)));
    const Staging out = own ? in : staging_of(output, rank);
    const Contiguous received = at.emplace_back(destination(output, kWhat, out));
    buffers.push_back(received.buffer(type));
    const ConstBuffer part = sent.read(type);
    parts.push_back(own ? kept(part, sent.memory, buffers[buffers.size() - 1], received.memory)
                        : part);
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLTOALL, "gtopk:all_to_all", inputs,
                                             std::move(at), outputs);
  return run(std::move(work), opts.timeout, [&] { return all_to_all(parts, buffers); });
}

WorkPointer GtopkBackend::reduce(std::vector<at::Tensor>& tensors,
                                 const c10d::ReduceOptions& opts) {
  const NotesError noting(window_);
  const at::Tensor& tensor = only(tensors, "reduce");
  const DataType type = data_type(tensor);
  const auto [op, factor] = reduction(opts.reduceOp);
  const bool root = rank_ == opts.rootRank;
  const Contiguous at = root ? writable(tensor, "reduce") : held(contiguous(tensor));
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::REDUCE, "gtopk:reduce", tensors,
                                             std::vector{at}, tensors);
  const Buffer data = at.buffer(type);
  return run(std::move(work), opts.timeout, [&] {
    return gtopk::reduce(data, static_cast<std::uint32_t>(opts.rootRank), op, factor);
  });
}

WorkPointer GtopkBackend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                 std::vector<at::Tensor>& inputs, const c10d::GatherOptions& opts) {
  const NotesError noting(window_);
  static constexpr const char* kWhat = "gather";
  const at::Tensor& input = only(inputs, kWhat);
  const std::vector<at::Tensor> list =
      list_on_root(outputs, rank_ == opts.rootRank, input.scalar_type(), size_, kWhat);
  const DataType type = type_to_move(input);
  // The root's own part is staged like its destination.
  const Staging staging =
      list.empty() ? staging_of(input, opts.rootRank)
                   : common(staging_of(input), staging_of(list[static_cast<std::size_t>(rank_)]));
  const Contiguous sent = held(contiguous(input, staging));
  std::vector<Contiguous> at{sent};
  Buffers buffers;
  ConstBuffer data = sent.read(type);
  for (int rank = 0; rank < static_cast<int>(list.size()); ++rank) {
    const at::Tensor& output = list[static_cast<std::size_t>(rank)];
    at.push_back(destination(output, kWhat, rank == rank_ ? staging : staging_of(output, rank)));
    buffers.push_back(at.back().buffer(type));
    if (rank == rank_) {
      data = kept(data, sent.memory, at.back().buffer(type), at.back().memory);
    }
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::GATHER, "gtopk:gather", inputs,
                                             std::move(at), list);
  return run(std::move(work), opts.timeout, [&] {
    return gtopk::gather(data, buffers, static_cast<std::uint32_t>(opts.rootRank));
  });
}

#if TORCH_VERSION_MINOR >= 14
WorkPointer GtopkBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                        const c10d::GatherOptions& opts) {
  const NotesError noting(window_);
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
  const NotesError noting(window_);
  static constexpr const char* kWhat = "scatter";
  const at::Tensor& output = only(outputs, kWhat);
  const std::vector<at::Tensor> list =
      list_on_root(inputs, rank_ == opts.rootRank, output.scalar_type(), size_, kWhat);
  const DataType type = type_to_move(output);
  const Staging staging =
      list.empty() ? staging_of(output, opts.rootRank)
                   : common(staging_of(output), staging_of(list[static_cast<std::size_t>(rank_)]));
  const Contiguous received = destination(output, kWhat, staging);
  std::vector<Contiguous> at{received};
  const Buffer into = received.buffer(type);
  ConstBuffers parts;
  for (int rank = 0; rank < static_cast<int>(list.size()); ++rank) {
    const at::Tensor& input = list[static_cast<std::size_t>(rank)];
    at.push_back(held(contiguous(input, rank == rank_ ? staging : staging_of(input, rank))));
    const ConstBuffer part = at.back().read(type);
    parts.push_back(rank == rank_ ? kept(part, at.back().memory, into, received.memory) : part);
  }
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::SCATTER, "gtopk:scatter", list,
                                             std::move(at), outputs);
  return run(std::move(work), opts.timeout, [&] {
    return gtopk::scatter(parts, into, static_cast<std::uint32_t>(opts.rootRank));
  });
}

}  // namespace gtopk::torch_backend
