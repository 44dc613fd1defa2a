// Sparse, plan room: how much an all-reduce has to do, in the units that gtopk::Costs prices. Pure
// arithmetic: sums and products in a fixed order, so that all ranks get the same bits.
#pragma once

#include <cstdint>

#include "gtopk/plan.hpp"

namespace gtopk::sparse {

/// On the critical path: the longest chain of messages and computations, each of which waits for
/// the one before.
struct Work {
  std::uint64_t messages = 0;
  double bytes = 0;             ///< of these messages, headers included
  std::uint64_t selected = 0;   ///< elements that are selected from
  std::uint64_t coded = 0;      ///< entries encoded or decoded
  std::uint64_t merged = 0;     ///< entries of lists that are merged and selected from again
  std::uint64_t united = 0;     ///< entries of lists that are merged only
  std::uint64_t added = 0;      ///< elements summed densely
  std::uint64_t committed = 0;  ///< elements written in the end
};

struct Nanoseconds {
  double latency = 0;    ///< messages alpha
  double transfer = 0;   ///< bytes beta
  double computing = 0;  ///< select, code, merge, unite, add, commit

  [[nodiscard]] double total() const { return latency + transfer + computing; }
};

[[nodiscard]] constexpr Nanoseconds price(const Work& work, const Costs& costs) {
  const auto times = [](std::uint64_t count, double cost) {
    return static_cast<double>(count) * cost;
  };
  return {.latency = times(work.messages, costs.message),
          .transfer = work.bytes * costs.byte,
          .computing = times(work.selected, costs.select) + times(work.coded, costs.code) +
                       times(work.merged, costs.merge) + times(work.united, costs.unite) +
                       times(work.added, costs.add) + times(work.committed, costs.commit)};
}

}  // namespace gtopk::sparse
