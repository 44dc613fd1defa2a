#include "src/gtopk/plan/links.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/tree.hpp"
#include "src/gtopk/plan/arithmetic.hpp"

namespace gtopk::sparse {
namespace {

using collectives::Tree;
using engine::GroupView;
using engine::Message;
using engine::Task;

constexpr std::size_t kShortBytes = collectives::kHeaderBytes;
constexpr std::size_t kLongBytes = 65536;
constexpr std::uint32_t kShortSwaps = 8;
constexpr std::uint32_t kLongSwaps = 3;
/// Lists and their acknowledgements are chunks 0 and 1 of the same steps.
constexpr std::uint32_t kFirstChunk = 2;
/// Below what any clock tells; nothing is free.
constexpr double kLeast = 1e-3;

struct Pair {
  std::uint32_t partner = 0;
  std::uint32_t step = 0;
};

/// The fastest of `swaps` messages of so many bytes each way, in nanoseconds.
Task<double> swap_time(GroupView& group, Pair pair, std::size_t bytes, std::uint32_t first_chunk,
                       std::uint32_t swaps) {
  const std::span<std::byte> mine = group.buffer(bytes).first(bytes);
  const std::span<std::byte> theirs = group.buffer(bytes).first(bytes);
  std::ranges::fill(mine, std::byte{0});
  double fastest = std::numeric_limits<double>::max();
  for (std::uint32_t chunk = first_chunk; chunk < first_chunk + swaps; ++chunk) {
    const transport::TimePoint begin = group.now();
    Message incoming = group.recv(pair.partner, pair.step, theirs, chunk);
    Message outgoing = group.send(pair.partner, pair.step, mine, chunk);
    const std::size_t received = co_await incoming;
    collectives::require_length(received, bytes, group, pair.partner);
    co_await outgoing;
    fastest =
        std::min(fastest, std::chrono::duration<double, std::nano>(group.now() - begin).count());
  }
  co_return fastest;
}

/// alpha and beta of the link to one partner.
Task<void> measure_link(GroupView& group, Pair pair, double& alpha, double& beta) {
  Task<double> short_ones = swap_time(group, pair, kShortBytes, kFirstChunk, kShortSwaps);
  alpha = co_await short_ones;
  Task<double> long_ones =
      swap_time(group, pair, kLongBytes, kFirstChunk + kShortSwaps, kLongSwaps);
  const double long_time = co_await long_ones;
  beta = std::max(0.0, long_time - alpha) / static_cast<double>(kLongBytes - kShortBytes);
}

}  // namespace

Task<Costs> measure_costs(GroupView& group) {
  const Tree tree(group.size());
  const std::uint32_t rank = group.rank();
  Costs costs;
  engine::Computation measuring = group.compute([&costs] { measure_arithmetic(costs); });
  co_await measuring;

  // Nobody swaps with a rank that still computes, or that called something else.
  Task<void> agreeing = collectives::agree(group);
  co_await agreeing;

  // alpha and beta of the fold and of each round, zero where this rank has no part in it; then the
  // arithmetic.
  const std::size_t rounds = tree.rounds() + (tree.folds(0) ? 1 : 0);
  std::vector<double> alphas(rounds);
  std::vector<double> betas(rounds);
  std::size_t round = 0;
  if (tree.folds(0)) {
    if (tree.folds(rank)) {
      const Pair pair{Tree::fold_partner(rank), Tree::fold_step()};
      Task<void> measuring_link = measure_link(group, pair, alphas[round], betas[round]);
      co_await measuring_link;
    }
    ++round;
  }
  for (std::uint32_t of_tree = 0; of_tree < tree.rounds() && !tree.folded_away(rank); ++of_tree) {
    const Pair pair{tree.partner(rank, of_tree), Tree::round_step(of_tree)};
    Task<void> measuring_link = measure_link(group, pair, alphas[round], betas[round]);
    co_await measuring_link;
    ++round;
  }

  std::vector<double> all = alphas;
  all.insert(all.end(), betas.begin(), betas.end());
  constexpr std::array kArithmetic = {&Costs::select, &Costs::code, &Costs::merge,
                                      &Costs::unite,  &Costs::add,  &Costs::commit};
  for (double Costs::*const cost : kArithmetic) all.push_back(costs.*cost);
  Task<void> reducing = collectives::reduce_over_ranks(group, all.data(), all.size(),
                                                       DataType::kFloat64, ReduceOp::kMax);
  co_await reducing;

  const auto average = [&](std::size_t first) {
    double sum = 0;
    for (std::size_t i = first; i < first + rounds; ++i) sum += all[i];
    return std::max(kLeast, rounds == 0 ? 0 : sum / static_cast<double>(rounds));
  };
  costs.message = average(0);
  costs.byte = average(rounds);
  for (std::size_t i = 0; i < kArithmetic.size(); ++i) {
    costs.*kArithmetic[i] = std::max(kLeast, all[2 * rounds + i]);
  }
  co_return costs;
}

}  // namespace gtopk::sparse
