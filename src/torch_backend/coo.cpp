// Torch backend: the all-reduce of sparse COO tensors, which converts indices to places and back.
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "src/torch_backend/backend.hpp"
#include "src/torch_backend/contiguous.hpp"
#include "src/torch_backend/tensors.hpp"

namespace gtopk::torch_backend {
namespace {

using c10d::OpType;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/// Returns the positions of a coalesced tensor's entries, in row-major order of its sparse
/// dimensions.
at::Tensor places_of(const at::Tensor& coalesced) {
  const at::Tensor indices = coalesced._indices();
  at::Tensor places = at::zeros({indices.size(1)}, at::kLong);
  for (std::int64_t dimension = 0; dimension < coalesced.sparse_dim(); ++dimension) {
    places.mul_(coalesced.size(dimension)).add_(indices[dimension]);
  }
  return places;
}

at::Tensor indices_of(const std::vector<std::uint64_t>& places, at::IntArrayRef sparse_sizes) {
  const auto entries = static_cast<std::int64_t>(places.size());
  at::Tensor left = at::empty({entries}, at::kLong);
  if (entries > 0) {
    std::memcpy(left.mutable_data_ptr(), places.data(), places.size() * sizeof(std::int64_t));
  }
  const auto dimensions = static_cast<std::int64_t>(sparse_sizes.size());
  at::Tensor indices = at::empty({dimensions, entries}, at::kLong);
  for (std::int64_t dimension = dimensions; dimension-- > 0;) {
    const std::int64_t size = sparse_sizes[static_cast<std::size_t>(dimension)];
    if (size == 0) {
      continue;  // there are no entries
    }
    indices[dimension].copy_(left.remainder(size));
    left = left.div(size, "floor");
  }
  return indices;
}

/// The memory that an operation on a sparse tensor reads and writes.
struct Entries {
  at::Tensor tensor;
  at::Tensor places;
  at::Tensor values;  ///< one row for each place
  CooSum sum;

  explicit Entries(const at::Tensor& sparse) : tensor(sparse) {
    const BelowAutograd below;
    const at::Tensor coalesced = tensor.coalesce();
    places = places_of(coalesced);
    values = coalesced._values().contiguous().resolve_conj().resolve_neg();
  }

  [[nodiscard]] CooEntries read() const {
    const auto* const first =
        reinterpret_cast<const std::uint64_t*>(places.const_data_ptr<std::int64_t>());
    return {{first, static_cast<std::size_t>(places.numel())}, values.const_data_ptr()};
  }

  void write() {
    const BelowAutograd below;
    std::vector<std::int64_t> rows = values.sizes().vec();
    rows.front() = static_cast<std::int64_t>(sum.places.size());
    const at::Tensor summed = at::empty(rows, values.options());
    if (!sum.values.empty()) {
      std::memcpy(summed.mutable_data_ptr(), sum.values.data(), sum.values.size());
    }
    const auto sparse_dimensions = static_cast<std::size_t>(tensor.sparse_dim());
    const at::Tensor indices = indices_of(sum.places, tensor.sizes().slice(0, sparse_dimensions));
    tensor.copy_(at::_sparse_coo_tensor_unsafe(indices, summed, tensor.sizes(), tensor.options(),
                                               /*is_coalesced=*/true));
  }
};

CooShape shape_of(const at::Tensor& sparse) {
  CooShape shape;
  for (const std::int64_t size : sparse.sizes()) {
    shape.sizes.push_back(static_cast<std::uint64_t>(size));
  }
  shape.sparse_dimensions = static_cast<std::uint32_t>(sparse.sparse_dim());
  shape.dtype = data_type(sparse);
  return shape;
}

}  // namespace

WorkPointer GtopkBackend::allreduce_coo(std::vector<at::Tensor>& tensors,
                                        const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = tensors.front();
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "gtopk: all_reduce of a sparse tensor takes a ",
                    "tensor on the CPU, given one on ", tensor.device());
  const ReduceOp op = reduction(opts.reduceOp).op;
  TORCH_CHECK_VALUE(op == ReduceOp::kSum, "gtopk: all_reduce of a sparse tensor takes SUM, given ",
                    std::string(to_string(op)));
  const CooShape shape = shape_of(tensor);
  const auto entries = std::make_shared<Entries>(tensor);
  auto work = c10::make_intrusive<GtopkWork>(rank_, OpType::ALLREDUCE, "gtopk:sparse_all_reduce",
                                             tensors, std::vector<Contiguous>{}, tensors);
  work->at_end([entries] { entries->write(); });
  return run(std::move(work), opts.timeout,
             [&] { return coo_all_reduce(entries->read(), shape, entries->sum); });
}

}  // namespace gtopk::torch_backend
