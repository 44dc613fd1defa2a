// Sparse, algorithms: lists whose entries count the ranks in them. A rank's own selection has no
// counts, because each would be one.
#include <fmt/format.h>

#include <algorithm>

#include "src/gtopk/algorithms/list_exchange.hpp"
#include "src/gtopk/merge/add_counts.hpp"
#include "src/gtopk/wire/counts.hpp"

namespace gtopk::sparse {

std::size_t ListExchange::bytes_of_counts(std::uint64_t ranks) const {
  return plan_.counted ? counts::capacity_for(plan_.entries_of(ranks), group_.size()) : 0;
}

void ListExchange::add_up_counts(List& list, const List& left, const List& right) {
  if (!plan_.counted) {
    return;
  }
  auto* const sums =
      reinterpret_cast<std::uint32_t*>(buffer(list.size * sizeof(std::uint32_t)).data());
  visit_entry(plan_.type, [&]<class Value, class Index>() {
    const auto counted = [](const List& one) {
      return Counted<Index>{one.entries<Value, Index>().indices, one.counts, one.size};
    };
    add_counts(list.entries<Value, Index>().indices, list.size, counted(left), counted(right),
               sums);
  });
  list.counts = sums;
}

std::span<std::byte> ListExchange::with_counts(std::span<const std::byte> message,
                                               const List& list) {
  const std::size_t most = message.size() + counts::capacity_for(list.size, group_.size());
  const std::span<std::byte> longer = buffer(most);
  std::ranges::copy(message.subspan(kFrontBytes), longer.begin() + kFrontBytes);
  std::byte* const behind = longer.data() + message.size();
  const std::size_t bytes = counts::encode(list.counts, list.size, scratch_.counts, behind);
  return longer.first(message.size() + bytes);
}

std::size_t ListExchange::before_counts(const collectives::Header& header,
                                        std::size_t received) const {
  if (header.count_bytes != 0 && (!plan_.counted || header.count_bytes > received - kFrontBytes)) {
    throw Damaged(fmt::format("{} of {} bytes are counts{}", header.count_bytes, received,
                              plan_.counted ? "" : ", expected none"));
  }
  return received - header.count_bytes;
}

void ListExchange::read_counts(std::span<const std::byte> code, List& list) {
  if (code.empty()) {
    return;
  }
  auto* const counts =
      reinterpret_cast<std::uint32_t*>(buffer(list.size * sizeof(std::uint32_t)).data());
  counts::decode(code, counts, list.size, group_.size(), scratch_.counts);
  list.counts = counts;
}

}  // namespace gtopk::sparse
