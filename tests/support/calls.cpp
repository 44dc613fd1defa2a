#include "support/calls.hpp"

#include <utility>

#include <fmt/format.h>

#include "collectives/agreement.hpp"
#include "collectives/all_gather.hpp"
#include "collectives/all_reduce.hpp"
#include "collectives/broadcast.hpp"
#include "engine/group_view.hpp"
#include "engine/point_to_point.hpp"

namespace gtopk::support {

using collectives::Collective;
using collectives::Signature;
using engine::GroupView;
using engine::OperationSpec;

OperationSpec sparse_all_reduce(const sparse::SparseCall& call, sparse::Workspace& workspace) {
  OperationSpec spec;
  spec.name = fmt::format("sparse_all_reduce({})", to_string(call.options.algorithm));
  spec.body = [call, &workspace](GroupView& group) {
    return sparse::sparse_all_reduce(group, call, workspace);
  };
  return spec;
}

OperationSpec all_reduce(void* data, std::uint64_t d, DataType type, ReduceOp op) {
  Signature signature;
  signature.collective = Collective::kAllReduce;
  signature.dtype = type;
  signature.op = op;
  signature.d = d;
  OperationSpec spec;
  spec.name = "all_reduce";
  spec.body = [=](GroupView& group) {
    return collectives::all_reduce(group, signature, data, d, type, op);
  };
  return spec;
}

OperationSpec broadcast(std::span<std::byte> data, std::uint32_t root, DataType type) {
  Signature signature;
  signature.dtype = type;
  signature.collective = Collective::kBroadcast;
  signature.root = root;
  signature.d = data.size();
  OperationSpec spec;
  spec.name = "broadcast";
  spec.body = [=](GroupView& group) { return collectives::broadcast(group, signature, data); };
  return spec;
}

OperationSpec all_gather(std::vector<std::span<std::byte>> rooms, DataType type) {
  Signature signature;
  signature.dtype = type;
  signature.collective = Collective::kAllGather;
  signature.d = rooms.front().size();
  OperationSpec spec;
  spec.name = "all_gather";
  spec.body = [signature, rooms = std::move(rooms)](GroupView& group) {
    return collectives::all_gather(group, signature, rooms);
  };
  return spec;
}

OperationSpec barrier() {
  OperationSpec spec;
  spec.name = "barrier";
  spec.after_earlier = true;
  spec.body = [signature = Signature{}](GroupView& group) {
    return collectives::agree(group, signature);
  };
  return spec;
}

OperationSpec send(std::span<const std::byte> data, std::uint32_t to, std::int32_t tag) {
  OperationSpec spec;
  spec.name = fmt::format("send(to {}, tag {})", to, tag);
  spec.point_to_point = true;
  spec.body = [=](GroupView& group) { return engine::send(group, to, tag, data); };
  return spec;
}

OperationSpec recv(std::span<std::byte> data, std::uint32_t from, std::int32_t tag) {
  OperationSpec spec;
  spec.name = fmt::format("recv(from {}, tag {})", from, tag);
  spec.point_to_point = true;
  spec.body = [=](GroupView& group) { return engine::recv(group, from, tag, data); };
  return spec;
}

Tensor tensor_of(const reference::Problem& problem, std::uint32_t rank) {
  return {problem.ranks.at(rank).gradient, problem.ranks.at(rank).residual};
}

OperationSpec sparse_all_reduce(const reference::Problem& problem, Tensor& tensor,
                                sparse::Workspace& workspace) {
  sparse::SparseCall call;
  call.tensor = tensor.values.data();
  call.residual = tensor.residual ? tensor.residual->data() : nullptr;
  call.d = problem.d;
  call.dtype = problem.type;
  call.options = problem.options;
  return sparse_all_reduce(call, workspace);
}

std::string differs_from_reference(InprocRanks& ranks, const reference::Problem& problem) {
  const reference::Outcome expected = reference::all_reduce(problem);
  std::vector<Tensor> tensors;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    tensors.push_back(tensor_of(problem, rank));
  }
  const auto endings = ranks.run([&](std::uint32_t rank) {
    return sparse_all_reduce(problem, tensors[rank], ranks.workspace(rank));
  });
  const DataType acc_type = accumulation_type(problem.type);
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (!endings[rank]->good()) return fmt::format("rank {}: {}", rank, endings[rank]->text());
    const std::string values =
        reference::difference(problem.type, expected.tensor, tensors[rank].values);
    if (!values.empty()) return fmt::format("rank {}, tensor: {}", rank, values);
    if (!tensors[rank].residual) continue;
    const std::string residuals =
        reference::difference(acc_type, expected.residuals[rank].value(), *tensors[rank].residual);
    if (!residuals.empty()) return fmt::format("rank {}, residual: {}", rank, residuals);
  }
  return {};
}

std::string group_works(InprocRanks& ranks) {
  std::vector<std::int64_t> values(ranks.size());
  std::int64_t sum = 0;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    values[rank] = 1 + rank * rank;
    sum += values[rank];
  }
  const auto endings =
      ranks.run([&](std::uint32_t rank) { return all_reduce(&values[rank], 1, DataType::kInt64); });
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (!endings[rank]->good()) return fmt::format("rank {}: {}", rank, endings[rank]->text());
    if (values[rank] != sum) {
      return fmt::format("rank {} has {}, the sum is {}", rank, values[rank], sum);
    }
  }
  return {};
}

}  // namespace gtopk::support
