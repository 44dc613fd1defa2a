#include "tools/programs/allreduce/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtopk/collectives.hpp"
#include "tests/reference/number.hpp"
#include "tests/reference/reference.hpp"
#include "tools/programs/allreduce/data.hpp"

namespace gtopk::programs::allreduce {
namespace {

constexpr std::uint64_t kSteps = 2;

std::vector<std::string> names(const std::vector<std::uint32_t>& hosts) {
  std::vector<std::string> names;
  names.reserve(hosts.size());
  for (const std::uint32_t host : hosts) {
    names.push_back(std::to_string(host));
  }
  return names;
}

reference::Problem problem_of(Job& job, const Setting& setting) {
  reference::Problem problem;
  problem.type = setting.dtype;
  problem.d = setting.n;
  problem.options = setting.sparse;
  for (std::uint32_t rank = 0; rank < job.size(); ++rank) {
    problem.ranks.push_back(
        {.gradient = gradient(setting.dtype, setting.n, rank),
         .residual = reference::zeros(accumulation_type(setting.dtype), setting.n)});
  }
  problem.hosts = names(job.group().hosts());
  return problem;
}

std::uint64_t elements_that_differ(const reference::Bytes& expected,
                                   const std::vector<std::byte>& seen, std::size_t element) {
  std::uint64_t wrong = 0;
  for (std::size_t at = 0; at < seen.size(); at += element) {
    if (std::memcmp(expected.data() + at, seen.data() + at, element) != 0) {
      ++wrong;
    }
  }
  return wrong;
}

/// Returns the error of the result against acc - residual summed over the ranks, which the
/// residuals imply was delivered.
double mass_error(Job& job, const reference::Problem& problem, const Tensor& tensor) {
  const DataType acc_type = accumulation_type(problem.type);
  const reference::Bytes acc = reference::accumulated(problem, job.rank());
  std::vector<double> left(problem.d);
  for (std::uint64_t i = 0; i < problem.d; ++i) {
    left[i] = reference::load(acc_type, acc, i) - reference::load(acc_type, tensor.residual, i);
  }
  job.run(all_reduce(left.data(), left.size(), DataType::kFloat64));
  const double times = problem.options.op == ReduceOp::kAvg ? job.size() : 1;
  double largest = 0;
  double error = 0;
  for (std::uint64_t i = 0; i < problem.d; ++i) {
    const double result = times * reference::load(problem.type, tensor.values, i);
    largest = std::max(largest, std::fabs(result));
    error = std::max(error, std::fabs(left[i] - result));
  }
  return largest > 0 ? error / largest : error;
}

}  // namespace

Verdict check(Job& job, const Setting& setting, const Device* device) {
  const std::unique_ptr<Subject> checked = subject(job, setting, device);
  reference::Problem problem = problem_of(job, setting);
  Verdict verdict;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    problem.options.seed = step;
    checked->refill();
    checked->step(job, step);
    const Tensor& tensor = checked->fetched();
    verdict.mass_error = std::max(verdict.mass_error, mass_error(job, problem, tensor));
    const reference::Outcome outcome = reference::all_reduce(problem);
    verdict.wrong += elements_that_differ(outcome.tensor, tensor.values, size_of(setting.dtype));
    verdict.wrong += elements_that_differ(outcome.residuals[job.rank()].value(), tensor.residual,
                                          size_of(accumulation_type(setting.dtype)));
    for (std::uint32_t rank = 0; rank < job.size(); ++rank) {
      problem.ranks[rank].residual = outcome.residuals[rank];
      problem.ranks[rank].state = outcome.states[rank];
    }
  }
  job.run(all_reduce(&verdict.wrong, 1, DataType::kUint64));
  return verdict;
}

std::uint64_t ranks_that_differ(Job& job, std::uint64_t checksum) {
  const auto all = job.gathered(std::vector<std::uint64_t>{checksum});
  return static_cast<std::uint64_t>(
      std::count_if(all.begin(), all.end(), [&](const auto& one) { return one != all.front(); }));
}

}  // namespace gtopk::programs::allreduce
