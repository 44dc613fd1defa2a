// Test support: operations as the communicator makes them, for engines without threads, and whole
// problems of the sparse all-reduce run over in-process ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/signature.hpp"
#include "engine/operation.hpp"
#include "gtopk/algorithms/sparse_all_reduce.hpp"
#include "gtopk/types.hpp"
#include "support/inproc_ranks.hpp"
#include "support/reference.hpp"

namespace gtopk::support {

[[nodiscard]] engine::OperationSpec sparse_all_reduce(const sparse::SparseCall& call,
                                                      sparse::Workspace& workspace);
[[nodiscard]] engine::OperationSpec all_reduce(void* data, std::uint64_t d, DataType type,
                                               ReduceOp op = ReduceOp::kSum);
[[nodiscard]] engine::OperationSpec broadcast(std::span<std::byte> data, std::uint32_t root,
                                              DataType type = DataType::kUint8);
[[nodiscard]] engine::OperationSpec all_gather(std::vector<std::span<std::byte>> rooms,
                                               DataType type = DataType::kUint8);
[[nodiscard]] engine::OperationSpec barrier();
[[nodiscard]] engine::OperationSpec send(std::span<const std::byte> data, std::uint32_t to,
                                         std::int32_t tag);
[[nodiscard]] engine::OperationSpec recv(std::span<std::byte> data, std::uint32_t from,
                                         std::int32_t tag);

/// What one rank brings to a sparse all-reduce, and what becomes of it.
struct Tensor {
  reference::Bytes values;
  std::optional<reference::Bytes> residual;
};
[[nodiscard]] Tensor tensor_of(const reference::Problem& problem, std::uint32_t rank);
/// The call of a problem on `tensor`, which must live as long as the operation.
[[nodiscard]] engine::OperationSpec sparse_all_reduce(const reference::Problem& problem,
                                                      Tensor& tensor, sparse::Workspace& workspace);

/// Runs the problem on `ranks`; empty when every rank ended well with the reference's tensor and
/// residual, bit for bit, else what differs first.
[[nodiscard]] std::string differs_from_reference(InprocRanks& ranks,
                                                 const reference::Problem& problem);

/// Whether the group works: an all-reduce of one integer per rank, which must give the sum. Else
/// what went wrong.
[[nodiscard]] std::string group_works(InprocRanks& ranks);

}  // namespace gtopk::support
