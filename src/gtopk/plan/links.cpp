#include "src/gtopk/plan/links.hpp"

#include <algorithm>
#include <array>
#include <bit>
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
/// The number of short swaps in each batch. The first one waits for the rank that computed longer.
constexpr std::uint32_t kShortSwaps = 3;
/// The number of batches in all rounds together; each round has at least two.
constexpr std::uint32_t kBatches = 12;
/// Per this many samples, one outlier, the slowest, is left out, because a rank may lose its core
/// for a long time.
constexpr std::size_t kSamplesPerOutlier = 8;
/// The number of long swaps is determined by a total duration, within these bounds.
constexpr std::size_t kLeastLongSwaps = 3;
constexpr std::size_t kMostLongSwaps = 12;
constexpr double kAllLongNanoseconds = 1e7;
/// A long message is as long as what the links carry in a millisecond, but at least as long as the
/// first long messages, and at most this long.
constexpr std::size_t kMostLongBytes = std::size_t{1} << 20U;
/// The length of the first long messages, if they may be this long.
constexpr std::size_t kFirstLongBytes = 65536;
constexpr std::size_t kLeastLongBytes = 4096;
/// Long messages together are one over this number of the planned tensor.
constexpr std::uint64_t kTensorsPerMeasurement = 8;
constexpr double kLongNanoseconds = 1e6;
/// Lists and their acknowledgements are chunks 0 and 1 of the same steps.
constexpr std::uint32_t kFirstChunk = 2;
/// The least cost, which is below the resolution of any clock. No cost may be zero.
constexpr double kLeastCost = 1e-3;

struct Pair {
  std::uint32_t partner = 0;
  std::uint32_t step = 0;
  /// The chunk of the next message between the two ranks.
  std::uint32_t chunk = kFirstChunk;
};

/// Swaps messages of these lengths; returns the duration in nanoseconds.
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

/// Measures the cost of a short message while steps of a call follow one another, after ranks have
/// computed and met once.
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

/// Raises `longest` to the larger of both ranks' values.
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

/// Measures the lower quartile of some exchanges of long messages, each in its own memory. Other
/// load on the machine lengthens many exchanges by more than their own duration.
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

/// One rank's measurements of one kind of links: alpha and beta of the fold and of each round of a
/// tree, or zero if the rank took no part.
struct Measured {
  explicit Measured(const Tree& largest)
      : alphas(largest.rounds() + 1), betas(largest.rounds() + 1) {}

  std::vector<double> alphas;
  std::vector<double> betas;
};

/// The length of a link's first long messages, which use at most half of the `all` bytes that all
/// long messages may use together.
std::size_t first_bytes(std::uint64_t all) {
  const std::uint64_t each = all / (2 * kLeastLongSwaps);
  return std::bit_floor(std::clamp<std::uint64_t>(each, kLeastLongBytes, kFirstLongBytes));
}

/// Measures alpha and beta of the link to one partner; its long messages have `all` bytes in total.
Task<void> measure_link(GroupView& group, Pair pair, std::uint32_t batches, std::uint64_t all,
                        double& alpha, double& beta) {
  Task<ShortTime> short_ones = short_time(group, pair, batches);
  const ShortTime of_short = co_await short_ones;
  alpha = of_short.usual;
  std::size_t bytes = first_bytes(all);
  const std::uint64_t rest = all - std::min(all, kLeastLongSwaps * bytes);
  Task<double> first_ones = long_time(group, pair, bytes, kLeastLongSwaps);
  double taken = co_await first_ones;
  // Both ranks must use the same value, which is the slower rank's.
  double longest = taken;
  co_await tell_longest(group, pair, longest);
  while (bytes < kMostLongBytes && 2 * longest <= kLongNanoseconds &&
         kLeastLongSwaps * 2 * bytes <= rest) {
    bytes *= 2;
    longest *= 2;
  }
  const auto in_time = static_cast<std::uint64_t>(
      std::clamp(kAllLongNanoseconds / longest, double{kLeastLongSwaps}, double{kMostLongSwaps}));
  const std::size_t swaps = std::min(in_time, rest / bytes);
  if (swaps >= kLeastLongSwaps) {
    Task<double> long_ones = long_time(group, pair, bytes, swaps);
    taken = co_await long_ones;
  }
  beta = std::max(0.0, taken - of_short.fastest) / static_cast<double>(bytes - kShortBytes);
}

/// The most links of any member of a tree.
std::uint32_t links_of(const Tree& tree) {
  return tree.rounds() + (tree.ranks() > tree.leaves() ? 1 : 0);
}

/// The most links of any rank; it is the same on all ranks.
std::uint64_t links_of(const Routes& routes) {
  return links_of(Tree(routes.largest_host())) + links_of(Tree(routes.hosts()));
}

/// Measures from the member at `place` of a tree to each of its partners, with `all` bytes of long
/// messages each. RankOf maps a place to a rank.
template <class RankOf>
Task<void> measure_tree(GroupView& group, Tree tree, std::uint32_t place, RankOf rank_of,
                        std::uint64_t all, Measured& measured) {
  const std::uint32_t steps = links_of(tree);
  const std::uint32_t batches = std::max(2U, kBatches / std::max(1U, steps));
  if (tree.folds(place)) {
    const Pair pair{rank_of(Tree::fold_partner(place)), Tree::fold_step()};
    Task<void> measuring =
        measure_link(group, pair, batches, all, measured.alphas.back(), measured.betas.back());
    co_await measuring;
  }
  for (std::uint32_t round = 0; round < tree.rounds() && !tree.folded_away(place); ++round) {
    const Pair pair{rank_of(tree.partner(place, round)), Tree::round_step(round)};
    Task<void> measuring =
        measure_link(group, pair, batches, all, measured.alphas[round], measured.betas[round]);
    co_await measuring;
  }
}

/// The average over the fold and the rounds in which some rank took part; never zero.
double average(std::span<const double> costs) {
  double sum = 0;
  std::size_t count = 0;
  for (const double cost : costs) {
    sum += cost;
    count += cost > 0 ? 1 : 0;
  }
  return std::max(kLeastCost, count == 0 ? 0 : sum / static_cast<double>(count));
}

}  // namespace

std::uint64_t long_bytes_for(std::uint64_t tensor_bytes, const Routes& routes) {
  const std::uint64_t links = links_of(routes);
  constexpr std::uint64_t kLeast = kLeastLongSwaps * kLeastLongBytes;
  return std::max(tensor_bytes / kTensorsPerMeasurement, links * kLeast);
}

bool measures_all(std::uint64_t tensor_bytes, const Routes& routes) {
  constexpr std::uint64_t kMost =
      2 * kLeastLongSwaps * kFirstLongBytes + kMostLongSwaps * kMostLongBytes;
  return long_bytes_for(tensor_bytes, routes) >= links_of(routes) * kMost;
}

Task<Costs> measure_costs(GroupView& group, const Routes& routes, std::uint64_t tensor_bytes) {
  const HostMap& hosts = group.hosts();
  const std::uint32_t rank = group.rank();
  const std::uint32_t host = hosts.host_of(rank);

  // All ranks compute at once, as they do when they select. No rank swaps with one that is still
  // computing or that called something else.
  co_await collectives::agree(group);
  Costs costs;
  engine::Computation measuring = group.compute([&costs] { measure_arithmetic(costs); });
  co_await measuring;
  co_await collectives::agree(group);

  const std::uint64_t of_link =
      long_bytes_for(tensor_bytes, routes) / std::max<std::uint64_t>(1, links_of(routes));
  const auto members = hosts.ranks_of(host);
  const auto place = static_cast<std::uint32_t>(std::ranges::find(members, rank) - members.begin());
  Measured within{Tree(routes.largest_host())};
  Task<void> inside = measure_tree(
      group, Tree(static_cast<std::uint32_t>(members.size())), place,
      [members](std::uint32_t of_host) { return members[of_host]; }, of_link, within);
  co_await inside;
  Measured between{Tree(routes.hosts())};
  if (place == 0) {
    Task<void> outside = measure_tree(
        group, Tree(hosts.hosts()), host,
        [&hosts](std::uint32_t other) { return hosts.leader(other); }, of_link, between);
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
  co_await collectives::reduce_over_ranks(group, all.data(), all.size(), DataType::kFloat64,
                                          ReduceOp::kMax);

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
    costs.*each.cost = std::max(kLeastCost, next(1)[0]);
  }
  co_return costs;
}

}  // namespace gtopk::sparse
