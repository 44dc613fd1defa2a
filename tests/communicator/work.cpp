#include "tests/communicator/work.hpp"

#include <optional>
#include <span>

#include <fmt/format.h>

#include "tests/reference/hosts.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::test {
namespace {

constexpr std::uint64_t kElements = 20'000;  // dense: 80,000 bytes, a ring
constexpr std::uint64_t kSelected = 5'000;
constexpr std::size_t kNumbers = 150'000;  // 600,000 bytes, several pieces
constexpr std::uint32_t kRoot = 0;

std::optional<std::string> algorithm_of(Kind kind) {
  switch (kind) {
    case Kind::kGtopk:
      return "gtopk";
    case Kind::kGtopkTree:
      return "gtopk-tree";
    case Kind::kTopk:
      return "topk";
    case Kind::kDense:
      return "dense";
    case Kind::kAllReduce:
    case Kind::kBarrier:
    case Kind::kBroadcast:
      break;
  }
  return std::nullopt;
}

/// The value that `rank` contributes to all_reduce and broadcast at `index`.
std::int32_t number(std::uint32_t rank, std::size_t index) {
  return static_cast<std::int32_t>(1 + rank + index % 1000);
}

std::int32_t result(Kind kind, std::uint32_t ranks, std::size_t index) {
  if (kind == Kind::kBroadcast) {
    return number(kRoot, index);
  }
  std::int32_t sum = 0;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    sum += number(rank, index);
  }
  return sum;
}

}  // namespace

std::string name_of_operation(Kind kind) {
  if (const auto algorithm = algorithm_of(kind)) {
    return fmt::format("sparse_all_reduce({})", *algorithm);
  }
  if (kind == Kind::kAllReduce) {
    return "all_reduce";
  }
  return kind == Kind::kBarrier ? "barrier" : "broadcast";
}

Plan::Plan(Kind kind, std::uint32_t ranks) : kind(kind), ranks(ranks) {
  const auto algorithm = algorithm_of(kind);
  if (!algorithm) {
    return;
  }
  problem.d = kElements;
  problem.options.k = kSelected;
  problem.options.algorithm = *algorithm;
  reference::Random random(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    reference::Input input{.gradient = reference::zeros(problem.type, problem.d),
                           .residual = reference::zeros(problem.type, problem.d)};
    for (std::uint64_t i = 0; i < problem.d; ++i) {
      reference::store(problem.type, input.gradient, i, random.uniform() - 0.5);
      reference::store(problem.type, *input.residual, i, random.uniform() - 0.5);
    }
    problem.ranks.push_back(std::move(input));
  }
  problem.hosts = support::hosts_of(ranks, ranks);  // processes of this machine
  outcome = reference::all_reduce(problem);
}

Work::Work(const Plan& plan, std::uint32_t rank) : plan_(&plan), rank_(rank) {
  if (sparse()) {
    tensor_ = support::tensor_of(plan.problem, rank);
  } else if (plan.kind != Kind::kBarrier) {
    for (std::size_t i = 0; i < kNumbers; ++i) {
      numbers_.push_back(number(rank, i));
    }
  }
}

void Work::submit(Communicator& group, Call call) {
  if (sparse()) {
    const reference::Problem& problem = plan_->problem;
    group.run(gtopk::sparse_all_reduce(tensor_.values.data(), tensor_.residual->data(), problem.d,
                                       problem.type, problem.options),
              std::move(call));
  } else if (plan_->kind == Kind::kAllReduce) {
    group.run(gtopk::all_reduce(numbers_.data(), numbers_.size(), DataType::kInt32, ReduceOp::kSum),
              std::move(call));
  } else if (plan_->kind == Kind::kBroadcast) {
    group.run(gtopk::broadcast(std::as_writable_bytes(std::span(numbers_)), kRoot),
              std::move(call));
  } else {
    group.run(gtopk::barrier(), std::move(call));
  }
}

std::string Work::wrong_result() const {
  if (sparse()) {
    const std::string values =
        reference::difference(plan_->problem.type, plan_->outcome.tensor, tensor_.values);
    if (!values.empty()) {
      return "tensor: " + values;
    }
    return reference::difference(plan_->problem.type, plan_->outcome.residuals[rank_].value(),
                                 *tensor_.residual);
  }
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    const std::int32_t expected = result(plan_->kind, plan_->ranks, i);
    if (numbers_[i] == expected) {
      continue;
    }
    return fmt::format("number {} is {}, expected {}", i, numbers_[i], expected);
  }
  return {};
}

std::string Work::touched() const {
  if (!sparse()) {
    return {};
  }
  const reference::Input& input = plan_->problem.ranks[rank_];
  const std::string values =
      reference::difference(plan_->problem.type, input.gradient, tensor_.values);
  if (!values.empty()) {
    return "tensor: " + values;
  }
  return reference::difference(plan_->problem.type, *input.residual, *tensor_.residual);
}

}  // namespace gtopk::test
