#include "src/gtopk/algorithms/regions.hpp"

#include <fmt/format.h>

#include <limits>

#include "gtopk/error.hpp"
#include "src/gtopk/algorithms/leaf_sum.hpp"

namespace gtopk::sparse {

using collectives::chunk_begin;
using collectives::Tree;
using engine::Task;

Task<Regions> agree_on_regions(ListExchange& exchange, const Tree& tree, const List& mine,
                               std::uint32_t splits, std::uint32_t first_step) {
  const std::uint64_t d = exchange.plan().d;
  const std::uint32_t regions = 1U << splits;
  LeafSum cuts(exchange.group(), tree, regions - 1);
  visit_entry(exchange.plan().type, [&]<class Value, class Index>() {
    const Entries<Value, Index> entries = mine.entries<Value, Index>();
    // With k = d every index has a place in the result, so it needs one in its region, too.
    const bool even = entries.size == 0 || exchange.plan().k == d;
    for (std::uint32_t cut = 1; cut < regions; ++cut) {
      cuts.words()[cut - 1] =
          even ? chunk_begin(d, regions, cut)
               : std::uint64_t{entries.indices[chunk_begin(entries.size, regions, cut)]};
    }
  });
  co_await cuts.sum(first_step);
  for (std::uint64_t& cut : cuts.words()) {
    cut /= tree.leaves();
    cut = exchange.plan().blocks ? exchange.plan().blocks.begin(cut) : cut;
  }
  co_return Regions(cuts.words(), d, exchange.plan().k);
}

Task<List> RegionWalk::halve(List mine, std::uint32_t round, std::uint32_t step,
                             std::uint64_t ranks) {
  const std::uint32_t partner = tree_.partner(rank_, round);
  const RegionRange given = range_.half(!upper(round));
  range_ = range_.half(upper(round));
  const auto of_mine = [&](RegionRange range) {
    return exchange_.part(mine, regions_.begin(range.first), regions_.begin(range.end));
  };
  Task<List> swapping =
      exchange_.swap(partner, {step, step}, exchange_.copied(of_mine(given)), ranks);
  const List theirs = co_await swapping;
  require_within(theirs, range_, std::numeric_limits<std::uint64_t>::max(), partner);
  co_return exchange_.merge(of_mine(range_), theirs, rank_, regions_.entries(range_));
}

Task<List> RegionWalk::join(List mine, std::uint32_t round, std::uint32_t step) {
  const std::uint32_t partner = tree_.partner(rank_, round);
  const std::uint32_t width = range_.end - range_.first;
  const RegionRange theirs_range = upper(round) ? RegionRange{range_.first - width, range_.first}
                                                : RegionRange{range_.end, range_.end + width};
  Task<List> swapping = exchange_.swap(partner, {step, step}, mine, 1);
  const List theirs = co_await swapping;
  require_within(theirs, theirs_range, exchange_.plan().k - mine.size, partner);
  if (upper(round)) {
    range_.first = theirs_range.first;
    co_return exchange_.joined(theirs, mine);
  }
  range_.end = theirs_range.end;
  co_return exchange_.joined(mine, theirs);
}

void RegionWalk::require_within(const List& list, RegionRange range, std::uint64_t most,
                                std::uint32_t from) const {
  if (list.size == 0) {
    return;
  }
  const std::uint64_t begin = regions_.begin(range.first);
  const std::uint64_t end = regions_.begin(range.end);
  visit_entry(exchange_.plan().type, [&]<class Value, class Index>() {
    const Entries<Value, Index> entries = list.entries<Value, Index>();
    const std::uint64_t first = entries.indices[0];
    const std::uint64_t last = entries.indices[entries.size - 1];
    if (first >= begin && last < end && entries.size <= most) {
      return;
    }
    throw Error(
        ErrorKind::kMismatch,
        fmt::format("{} sent a damaged list: {} indices from {} to {}, expected at most {} "
                    "from {} to below {}",
                    exchange_.group().member(from), entries.size, first, last, most, begin, end));
  });
}

}  // namespace gtopk::sparse
