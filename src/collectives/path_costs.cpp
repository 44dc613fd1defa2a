#include "src/collectives/path_costs.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <memory>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/direct.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/tree.hpp"
#include "src/transport/base/log.hpp"

namespace gtopk::collectives {
namespace {

using engine::GroupView;
using engine::Task;

/// The number of measurements. The first one connects; the quickest of the others counts.
constexpr int kMeasurements = 5;
/// The bytes of all messages that a rank sends at once, and the minimum and maximum of one message.
constexpr std::size_t kMeasuredBytes = 98304;
constexpr std::size_t kLeastMeasured = 1024;
constexpr std::size_t kMostMeasured = 32768;

double nanoseconds_since(transport::TimePoint begin, GroupView& group) {
  return std::chrono::duration<double, std::nano>(group.now() - begin).count();
}

/// Lowers `best` to the duration of the exchange. `capacity` is the number of bytes that ranks that
/// do not measure may send at first.
template <class Exchange>
Task<void> time(GroupView& group, std::uint32_t& step, std::size_t capacity, double& best,
                Exchange exchange) {
  const std::uint32_t steps = Tree(group.size()).end_step();
  // Ranks leave the previous step at different times.
  co_await agree(group, step, Header::kMeasures, step == 0 ? capacity : 0);
  const transport::TimePoint begin = group.now();
  co_await exchange(step + steps);
  best = std::min(best, nanoseconds_since(begin, group));
  step += 2 * steps;
}

Task<PathCosts> measure(GroupView& group, const DensePaths& paths, std::size_t capacity) {
  constexpr double kNever = std::numeric_limits<double>::max();
  const std::size_t bytes =
      std::clamp(kMeasuredBytes / (group.size() - 1), kLeastMeasured, kMostMeasured);
  std::array<double, 3> best{};
  std::uint32_t step = 0;
  for (int i = 0; i < kMeasurements; ++i) {
    if (i <= 1) {  // the first one connects
      best.fill(kNever);
    }
    Task<void> first = time(group, step, capacity, best[0],
                            [&](std::uint32_t from) { return agree(group, from); });
    co_await first;
    Task<void> second = time(group, step, capacity, best[1],
                             [&](std::uint32_t from) { return swap_directly(group, 0, from); });
    co_await second;
    Task<void> third = time(group, step, capacity, best[2],
                            [&](std::uint32_t from) { return swap_directly(group, bytes, from); });
    co_await third;
  }
  co_await reduce_over_ranks(group, best.data(), best.size(), DataType::kFloat64, ReduceOp::kMax,
                             step);
  const double sent = paths.direct_messages() * static_cast<double>(bytes);
  const PathCosts costs{
      .tree = best[0], .direct = best[1], .byte = std::max(0.0, best[2] - best[1]) / sent};
  transport::log().info(
      "headers take {:.1f} us along the tree and {:.1f} us directly, a byte {:.2f} ns",
      costs.tree * 1e-3, costs.direct * 1e-3, costs.byte);
  co_return costs;
}

}  // namespace

KnownPaths& ways_of(GroupView& group) {
  auto& known = group.per_group_state().of<KnownPaths>();
  if (!known.paths) {
    known.paths.emplace(group.hosts());
  }
  return known;
}

Task<bool> PathChoice::directly(Question question, std::size_t bytes) {
  const DensePaths& paths = *known_.paths;
  bool answer = false;
  if (known_.setting != PathSetting::kAuto) {
    answer = known_.setting == PathSetting::kDirect;
  } else if (bytes <= kFewBytes) {
    answer = false;
  } else if (group_.size() == 2 || !paths.may_go_directly() ||
             group_.sequence() < KnownPaths::kMeasuredFrom) {
    answer = (paths.*question)(bytes, paths.usual());
  } else {
    if (!known_.measured) {
      const auto turn = std::make_unique<engine::Turn>(group_);
      engine::Turn& mine = *turn;
      co_await mine;
      // An earlier operation may have measured meanwhile.
      if (!known_.measured) {
        group_.enter("measure");
        Task<PathCosts> measuring =
            measure(group_, paths, std::min(bytes, kRecursiveDoublingBytes));
        known_.measured = co_await measuring;
        known_.measured_by = group_.sequence();
      }
    }
    answer = (paths.*question)(bytes, *known_.measured);
  }
  take(answer);
  co_return answer;
}

void forget_paths(engine::PerGroupState& per_group_state, std::uint64_t number,
                  const Error& error) {
  auto& known = per_group_state.of<KnownPaths>();
  if (known.measured_by < number && says_that_ways_differ(error)) {
    known.measured.reset();
  }
}

}  // namespace gtopk::collectives
