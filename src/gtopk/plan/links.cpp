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
using engine::HostMap;
using engine::Message;
using engine::Task;

constexpr std::size_t kShortBytes = collectives::kHeaderBytes;
constexpr std::size_t kLongBytes = 65536;
constexpr std::uint32_t kShortSwaps = 8;
constexpr std::uint32_t kLongSwaps = 3;
/// Lists and their acknowledgements are chunks 0 and 1 of the same steps.
constexpr std::uint32_t kFirstChunk = 2;
/// Less than any clock resolves; no cost may be zero.
constexpr double kLeast = 1e-3;

struct Pair {
  std::uint32_t partner = 0;
  std::uint32_t step = 0;
};

/// The fastest of `swaps` exchanges of messages of this size, in nanoseconds.
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

/// What one rank has measured of one kind of links: alpha and beta of the fold and of each round of
/// a tree, zero where it took no part.
struct Measured {
  explicit Measured(const Tree& largest)
      : alphas(largest.rounds() + 1), betas(largest.rounds() + 1) {}

  std::vector<double> alphas;
  std::vector<double> betas;
};

/// alpha and beta of the link to one partner.
Task<void> measure_link(GroupView& group, Pair pair, double& alpha, double& beta) {
  Task<double> short_ones = swap_time(group, pair, kShortBytes, kFirstChunk, kShortSwaps);
  alpha = co_await short_ones;
  Task<double> long_ones =
      swap_time(group, pair, kLongBytes, kFirstChunk + kShortSwaps, kLongSwaps);
  const double long_time = co_await long_ones;
  beta = std::max(0.0, long_time - alpha) / static_cast<double>(kLongBytes - kShortBytes);
}

/// Measures from the member at `place` of a tree to each of its partners. RankOf: place -> rank.
template <class RankOf>
Task<void> measure_tree(GroupView& group, Tree tree, std::uint32_t place, RankOf rank_of,
                        Measured& measured) {
  if (tree.folds(place)) {
    const Pair pair{rank_of(Tree::fold_partner(place)), Tree::fold_step()};
    Task<void> measuring = measure_link(group, pair, measured.alphas.back(), measured.betas.back());
    co_await measuring;
  }
  for (std::uint32_t round = 0; round < tree.rounds() && !tree.folded_away(place); ++round) {
    const Pair pair{rank_of(tree.partner(place, round)), Tree::round_step(round)};
    Task<void> measuring = measure_link(group, pair, measured.alphas[round], measured.betas[round]);
    co_await measuring;
  }
}

/// The average over fold and rounds in which some rank took part; never zero.
double average(std::span<const double> costs) {
  double sum = 0;
  std::size_t count = 0;
  for (const double cost : costs) {
    sum += cost;
    count += cost > 0 ? 1 : 0;
  }
  return std::max(kLeast, count == 0 ? 0 : sum / static_cast<double>(count));
}

}  // namespace

Task<Costs> measure_costs(GroupView& group, const Routes& routes) {
  const HostMap& hosts = group.hosts();
  const std::uint32_t rank = group.rank();
  const std::uint32_t host = hosts.host_of(rank);

  // All ranks compute at once, as they do when they select; and no rank swaps with one that still
  // computes, or that called something else.
  Task<void> agreeing = collectives::agree(group);
  co_await agreeing;
  Costs costs;
  engine::Computation measuring = group.compute([&costs] { measure_arithmetic(costs); });
  co_await measuring;
  Task<void> gathering = collectives::agree(group);
  co_await gathering;

  const auto members = hosts.ranks_of(host);
  const auto place = static_cast<std::uint32_t>(std::ranges::find(members, rank) - members.begin());
  Measured within{Tree(routes.largest_host())};
  Task<void> inside = measure_tree(
      group, Tree(static_cast<std::uint32_t>(members.size())), place,
      [members](std::uint32_t of_host) { return members[of_host]; }, within);
  co_await inside;
  Measured between{Tree(routes.hosts())};
  if (place == 0) {
    Task<void> outside = measure_tree(
        group, Tree(hosts.hosts()), host,
        [&hosts](std::uint32_t other) { return hosts.leader(other); }, between);
    co_await outside;
  }

  std::vector<double> all;
  const auto add = [&all](const std::vector<double>& some) {
    all.insert(all.end(), some.begin(), some.end());
    return some.size();
  };
  const std::array sizes = {add(within.alphas), add(within.betas), add(between.alphas),
                            add(between.betas)};
  constexpr std::array kArithmetic = {&Costs::select, &Costs::code, &Costs::merge,
                                      &Costs::unite,  &Costs::add,  &Costs::commit};
  for (double Costs::*const cost : kArithmetic) {
    all.push_back(costs.*cost);
  }
  Task<void> reducing = collectives::reduce_over_ranks(group, all.data(), all.size(),
                                                       DataType::kFloat64, ReduceOp::kMax);
  co_await reducing;

  std::span<const double> rest(all);
  const auto next = [&rest](std::size_t count) {
    const std::span<const double> taken = rest.first(count);
    rest = rest.subspan(count);
    return taken;
  };
  LinkCosts inside_hosts;
  inside_hosts.message = average(next(sizes[0]));
  inside_hosts.byte = average(next(sizes[1]));
  LinkCosts between_hosts;
  between_hosts.message = average(next(sizes[2]));
  between_hosts.byte = average(next(sizes[3]));
  if (routes.largest_host() > 1) {
    costs.within = inside_hosts;
  }
  if (routes.hosts() > 1) {
    costs.between = between_hosts;
  }
  for (double Costs::*const cost : kArithmetic) {
    costs.*cost = std::max(kLeast, next(1)[0]);
  }
  co_return costs;
}

}  // namespace gtopk::sparse
