#include "src/gtopk/plan/links.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
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
/// Of each batch of short swaps: the first one waits for whoever computed longer.
constexpr std::uint32_t kShortSwaps = 3;
/// In all rounds together, but two in each round at least.
constexpr std::uint32_t kBatches = 12;
/// Samples of which the slowest is left out: a rank that lost its core for long.
constexpr std::size_t kSamplesPerOutlier = 8;
/// As many as take so long in all, within these bounds.
constexpr std::size_t kLeastLongSwaps = 3;
constexpr std::size_t kMostLongSwaps = 12;
constexpr double kAllLongNanoseconds = 1e7;
/// A long message is as long as the links carry in a millisecond, within these bounds.
constexpr std::size_t kLeastLongBytes = 65536;
constexpr std::size_t kMostLongBytes = std::size_t{1} << 20U;
constexpr double kLongNanoseconds = 1e6;
/// Lists and their acknowledgements are chunks 0 and 1 of the same steps.
constexpr std::uint32_t kFirstChunk = 2;
/// Less than any clock resolves; no cost may be zero.
constexpr double kLeast = 1e-3;

struct Pair {
  std::uint32_t partner = 0;
  std::uint32_t step = 0;
  /// Of the next message between the two.
  std::uint32_t chunk = kFirstChunk;
};

/// An exchange of messages as long as these, in nanoseconds.
Task<double> swap_time(GroupView& group, Pair& pair, std::span<std::byte> mine,
                       std::span<std::byte> theirs) {
  const std::uint32_t chunk = pair.chunk++;
  const transport::TimePoint begin = group.now();
  Message incoming = group.recv(pair.partner, pair.step, theirs, chunk);
  Message outgoing = group.send(pair.partner, pair.step, mine, chunk);
  const std::size_t received = co_await incoming;
  collectives::require_length(received, mine.size(), group, pair.partner);
  co_await outgoing;
  co_return std::chrono::duration<double, std::nano>(group.now() - begin).count();
}

struct ShortTime {
  double usual = 0;  ///< the mean
  double fastest = 0;
};

/// What a short message takes as steps of a call follow one another: after ranks have computed, and
/// met once.
Task<ShortTime> short_time(GroupView& group, Pair& pair, std::uint32_t batches) {
  const std::span<std::byte> mine = group.buffer(kShortBytes).first(kShortBytes);
  const std::span<std::byte> theirs = group.buffer(kShortBytes).first(kShortBytes);
  std::ranges::fill(mine, std::byte{0});
  std::vector<double> samples;
  for (std::uint32_t batch = 0; batch < batches; ++batch) {
    engine::Computation computing = group.compute([] { keep_a_core_busy(); });
    co_await computing;
    for (std::uint32_t swap = 0; swap <= kShortSwaps; ++swap) {
      Task<double> swapping = swap_time(group, pair, mine, theirs);
      const double taken = co_await swapping;
      if (swap > 0) {
        samples.push_back(taken);
      }
    }
  }
  std::ranges::sort(samples);
  samples.resize(samples.size() - samples.size() / kSamplesPerOutlier);
  const double sum = std::accumulate(samples.begin(), samples.end(), 0.0);
  co_return ShortTime{sum / static_cast<double>(samples.size()), samples.front()};
}

/// Makes `longest` the larger of both ranks'.
Task<void> tell_longest(GroupView& group, Pair& pair, double& longest) {
  const std::span<std::byte> mine = group.buffer(sizeof longest).first(sizeof longest);
  const std::span<std::byte> theirs = group.buffer(sizeof longest).first(sizeof longest);
  std::memcpy(mine.data(), &longest, sizeof longest);
  Task<double> swapping = swap_time(group, pair, mine, theirs);
  co_await swapping;
  double other = 0;
  std::memcpy(&other, theirs.data(), sizeof other);
  longest = std::max(longest, other);
}

/// The lower quartile of some exchanges of long messages, each in memory of its own: what else runs
/// on the machine lengthens many of them by more than they take.
Task<double> long_time(GroupView& group, Pair& pair, std::size_t bytes, std::size_t swaps) {
  std::array<double, kMostLongSwaps> samples{};
  for (std::size_t swap = 0; swap < swaps; ++swap) {
    const std::span<std::byte> mine = group.buffer(bytes).first(bytes);
    std::ranges::fill(mine, std::byte{0});
    Task<double> swapping = swap_time(group, pair, mine, group.buffer(bytes).first(bytes));
    samples.at(swap) = co_await swapping;
  }
  const auto taken = std::span(samples).first(swaps);
  std::ranges::sort(taken);
  co_return taken[swaps / 4];
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
Task<void> measure_link(GroupView& group, Pair pair, std::uint32_t batches, double& alpha,
                        double& beta) {
  Task<ShortTime> short_ones = short_time(group, pair, batches);
  const ShortTime of_short = co_await short_ones;
  alpha = of_short.usual;
  Task<double> first_ones = long_time(group, pair, kLeastLongBytes, kLeastLongSwaps);
  double taken = co_await first_ones;
  std::size_t bytes = kLeastLongBytes;
  // Both must take the same: what the slower of the two has seen.
  double longest = taken;
  Task<void> telling = tell_longest(group, pair, longest);
  co_await telling;
  while (bytes < kMostLongBytes && 2 * longest <= kLongNanoseconds) {
    bytes *= 2;
    longest *= 2;
  }
  const auto swaps = static_cast<std::size_t>(
      std::clamp(kAllLongNanoseconds / longest, double{kLeastLongSwaps}, double{kMostLongSwaps}));
  if (bytes > kLeastLongBytes || swaps > kLeastLongSwaps) {
    Task<double> long_ones = long_time(group, pair, bytes, swaps);
    taken = co_await long_ones;
  }
  beta = std::max(0.0, taken - of_short.fastest) / static_cast<double>(bytes - kShortBytes);
}

/// Measures from the member at `place` of a tree to each of its partners. RankOf: place -> rank.
template <class RankOf>
Task<void> measure_tree(GroupView& group, Tree tree, std::uint32_t place, RankOf rank_of,
                        Measured& measured) {
  const std::uint32_t steps = tree.rounds() + (tree.ranks() > tree.leaves() ? 1 : 0);
  const std::uint32_t batches = std::max(2U, kBatches / std::max(1U, steps));
  if (tree.folds(place)) {
    const Pair pair{rank_of(Tree::fold_partner(place)), Tree::fold_step()};
    Task<void> measuring =
        measure_link(group, pair, batches, measured.alphas.back(), measured.betas.back());
    co_await measuring;
  }
  for (std::uint32_t round = 0; round < tree.rounds() && !tree.folded_away(place); ++round) {
    const Pair pair{rank_of(tree.partner(place, round)), Tree::round_step(round)};
    Task<void> measuring =
        measure_link(group, pair, batches, measured.alphas[round], measured.betas[round]);
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
  for (const NamedCost& each : kArithmeticCosts) {
    all.push_back(costs.*each.cost);
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
  for (const NamedCost& each : kArithmeticCosts) {
    costs.*each.cost = std::max(kLeast, next(1)[0]);
  }
  co_return costs;
}

}  // namespace gtopk::sparse
