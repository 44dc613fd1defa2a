#include "tests/support/calls.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"

#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace gtopk::support {

Tensor tensor_of(const reference::Problem& problem, std::uint32_t rank) {
  return {problem.ranks.at(rank).gradient, problem.ranks.at(rank).residual};
}

Collective sparse_all_reduce(const reference::Problem& problem, Tensor& tensor) {
  sparse::SparseCall call;
  call.tensor = tensor.values.data();
  call.residual = tensor.residual ? tensor.residual->data() : nullptr;
  call.d = problem.d;
  call.dtype = problem.type;
  call.options = problem.options;
  return sparse::collective(call);
}

std::string differs_from_reference(InprocRanks& ranks, const reference::Problem& problem) {
  reference::Problem there = problem;
  there.hosts = ranks.hosts();
  const reference::Outcome expected = reference::all_reduce(there);
  std::vector<Tensor> tensors;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    tensors.push_back(tensor_of(problem, rank));
  }
  const auto endings =
      ranks.run([&](std::uint32_t rank) { return sparse_all_reduce(problem, tensors[rank]); });
  const DataType acc_type = accumulation_type(problem.type);
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (!endings[rank]->good()) {
      return fmt::format("rank {}: {}", rank, endings[rank]->text());
    }
    const std::string values =
        reference::difference(problem.type, expected.tensor, tensors[rank].values);
    if (!values.empty()) {
      return fmt::format("rank {}, tensor: {}", rank, values);
    }
    if (!tensors[rank].residual) {
      continue;
    }
    const std::string residuals =
        reference::difference(acc_type, expected.residuals[rank].value(), *tensors[rank].residual);
    if (!residuals.empty()) {
      return fmt::format("rank {}, residual: {}", rank, residuals);
    }
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
  const auto endings = ranks.run(
      [&](std::uint32_t rank) { return gtopk::all_reduce(&values[rank], 1, DataType::kInt64); });
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (!endings[rank]->good()) {
      return fmt::format("rank {}: {}", rank, endings[rank]->text());
    }
    if (values[rank] != sum) {
      return fmt::format("rank {} has {}, the sum is {}", rank, values[rank], sum);
    }
  }
  return {};
}

std::string refusal_of_a_flip(const reference::Problem& problem, std::uint64_t message,
                              std::size_t byte) {
  const auto size = static_cast<std::uint32_t>(problem.ranks.size());
  InprocRanks ranks(size, network(1));
  std::uint64_t seen = 0;
  ranks.fabric().set_faults([&](const transport::inproc::Sent& sent) {
    transport::inproc::Fault fault;
    if (transport::kind_of(sent.tag) == transport::TagKind::kCollective && seen++ == message) {
      fault.flip = byte;
    }
    return fault;
  });
  std::vector<Tensor> tensors;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    tensors.push_back(tensor_of(problem, rank));
  }
  const auto endings =
      ranks.run([&](std::uint32_t rank) { return sparse_all_reduce(problem, tensors[rank]); });
  std::string text;
  for (const auto& ending : endings) {
    if (ending->error && ending->error->kind() == ErrorKind::kMismatch) {
      text += ending->text();
    }
  }
  ranks.fabric().set_faults({});
  EXPECT_EQ(group_works(ranks), "");
  return text;
}

}  // namespace gtopk::support
