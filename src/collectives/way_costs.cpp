#include "src/collectives/way_costs.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <memory>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/direct.hpp"
#include "src/collectives/tree.hpp"

namespace gtopk::collectives {
namespace {

using engine::GroupView;
using engine::Task;

/// Of which the first connects, and the quickest counts.
constexpr int kMeasurements = 4;
/// Of all messages that a rank sends at once; of one at least and at most.
constexpr std::size_t kMeasuredBytes = 98304;
constexpr std::size_t kLeastMeasured = 1024;
constexpr std::size_t kMostMeasured = 32768;

double nanoseconds_since(transport::TimePoint begin, GroupView& group) {
  return std::chrono::duration<double, std::nano>(group.now() - begin).count();
}

Task<WayCosts> measure(GroupView& group, const Ways& ways) {
  constexpr double kNever = std::numeric_limits<double>::max();
  const std::size_t bytes =
      std::clamp(kMeasuredBytes / (group.size() - 1), kLeastMeasured, kMostMeasured);
  std::array<double, 3> best{kNever, kNever, kNever};
  const std::uint32_t steps = Tree(group.size()).end_step();
  std::uint32_t step = 0;
  for (int i = 0; i < kMeasurements; ++i) {
    const std::array<std::size_t, 2> sizes{0, bytes};
    std::array<double, 3> taken{};
    transport::TimePoint begin = group.now();
    co_await agree(group, step);
    taken[0] = nanoseconds_since(begin, group);
    step += steps;
    for (std::size_t size = 0; size < sizes.size(); ++size) {
      begin = group.now();
      co_await swap_directly(group, sizes.at(size), step);
      taken.at(1 + size) = nanoseconds_since(begin, group);
      step += steps;
    }
    for (std::size_t which = 0; i > 0 && which < best.size(); ++which) {
      best.at(which) = std::min(best.at(which), taken.at(which));
    }
  }
  co_await reduce_over_ranks(group, best.data(), best.size(), DataType::kFloat64, ReduceOp::kMax,
                             step);
  const double sent = ways.direct_messages() * static_cast<double>(bytes);
  co_return WayCosts{.tree = best[0],
                     .direct = best[1],
                     .byte = std::max(0.0, best[2] - best[1]) / sent};
}

}  // namespace

KnownWays& ways_of(GroupView& group) {
  auto& known = group.keepsakes().of<KnownWays>();
  if (!known.ways) {
    known.ways.emplace(group.hosts());
  }
  return known;
}

Task<bool> WayChoice::directly(Question question, std::size_t bytes) {
  const Ways& ways = *known_.ways;
  bool answer = false;
  if (known_.setting != WaySetting::kAuto) {
    answer = known_.setting == WaySetting::kDirect;
  } else if (bytes <= kFewBytes) {
    answer = false;
  } else if (group_.size() == 2 || group_.sequence() < KnownWays::kMeasuredFrom) {
    answer = (ways.*question)(bytes, ways.usual());
  } else {
    if (!known_.measured) {
      const auto turn = std::make_unique<engine::Turn>(group_);
      engine::Turn& mine = *turn;
      co_await mine;
      // An operation before this one may have measured.
      if (!known_.measured) {
        group_.enter("measure");
        Task<WayCosts> measuring = measure(group_, ways);
        known_.measured = co_await measuring;
      }
    }
    answer = (ways.*question)(bytes, *known_.measured);
  }
  group_.enter(answer ? "directly" : "along the tree");
  co_return answer;
}

}  // namespace gtopk::collectives
