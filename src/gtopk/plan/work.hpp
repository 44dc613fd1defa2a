// Sparse, plan: the work of an all-reduce, in the units of gtopk::Costs. This is pure arithmetic,
// with sums and products in a fixed order, so that all ranks get the same bits.
#pragma once

#include <cstdint>

#include "gtopk/plan.hpp"

namespace gtopk::sparse {

/// Consecutive messages over links of one kind.
struct Traffic {
  std::uint64_t messages = 0;
  double bytes = 0;  ///< including headers
};

/// The work on the critical path: the longest chain of messages and computations, each of which
/// waits for the previous one.
struct Work {
  Traffic within;   ///< between ranks of one host
  Traffic between;  ///< between hosts
  /// The bytes between hosts, counted once for each rank of a host that sends at the same time. A
  /// host's link carries them before the path continues.
  double host_bytes = 0;
  std::uint64_t selected = 0;   ///< elements from which entries are selected
  std::uint64_t picked = 0;     ///< entries selected
  std::uint64_t coded = 0;      ///< entries encoded or decoded
  std::uint64_t merged = 0;     ///< entries of lists that are merged and re-selected
  std::uint64_t united = 0;     ///< entries of lists that are only merged
  std::uint64_t copied = 0;     ///< entries of parts of lists
  std::uint64_t added = 0;      ///< elements summed densely
  std::uint64_t committed = 0;  ///< elements written at the end
  std::uint64_t applied = 0;    ///< entries sent, delivered and put back
  std::uint64_t gathered = 0;   ///< elements of acc copied as a whole
  std::uint64_t settled = 0;    ///< elements written as a whole

  [[nodiscard]] constexpr std::uint64_t messages() const {
    return within.messages + between.messages;
  }
  [[nodiscard]] constexpr double bytes() const { return within.bytes + between.bytes; }
};

struct Nanoseconds {
  double latency = 0;    ///< messages times alpha
  double transfer = 0;   ///< bytes times beta
  double computing = 0;  ///< everything else

  [[nodiscard]] double total() const { return latency + transfer + computing; }
};

[[nodiscard]] constexpr Nanoseconds price(const Work& work, const Costs& costs) {
  const auto times = [](std::uint64_t count, double cost) {
    return static_cast<double>(count) * cost;
  };
  return {.latency = times(work.within.messages, costs.within.message) +
                     times(work.between.messages, costs.between.message),
          .transfer = work.within.bytes * costs.within.byte + work.host_bytes * costs.between.byte,
          .computing = times(work.selected, costs.select) + times(work.picked, costs.pick) +
                       times(work.coded, costs.code) + times(work.merged, costs.merge) +
                       times(work.united, costs.unite) + times(work.copied, costs.copy) +
                       times(work.added, costs.add) + times(work.committed, costs.commit) +
                       times(work.applied, costs.apply) + times(work.gathered, costs.gather) +
                       times(work.settled, costs.settle)};
}

}  // namespace gtopk::sparse
