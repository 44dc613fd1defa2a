// Sparse, algorithms: sums that are sent as the selections in them, and added up where they arrive,
// in the same order. On a wire that rounds selections to few bits, a sum, which is not rounded,
// takes more bytes than its selections unless many ranks have selected the same indices.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "src/collectives/tree.hpp"
#include "src/gtopk/algorithms/list_exchange.hpp"

namespace gtopk::sparse {

using collectives::Header;

void ListExchange::keep_selection(List& list, std::span<std::byte> message) {
  const std::span<CodedSelection> only = buffer_for_selections(1);
  only.front() = {list.size, message.subspan(kFrontBytes)};
  list.selections = only;
}

void ListExchange::join_selections(List& sum, const List& left, const List& right) {
  if (!sum.finite || left.selections.empty() || right.selections.empty()) {
    return;
  }
  const std::span<CodedSelection> both =
      buffer_for_selections(left.selections.size() + right.selections.size());
  std::ranges::copy(right.selections, std::ranges::copy(left.selections, both.begin()).out);
  sum.selections = both;
}

ListExchange::Coded ListExchange::code_shortest(const List& list) {
  if (list.selections.size() == 1) {
    const std::span<std::byte> code = list.selections.front().code;
    return {{code.data() - kFrontBytes, kFrontBytes + code.size()}, list.size, 0, 0};
  }
  std::size_t bytes = kFrontBytes;
  for (const CodedSelection& each : list.selections) {
    bytes += bytes_of_selection(each.code.size());
  }
  // The values alone may show that the sum is longer.
  if (bytes > kFrontBytes + list.size * plan_.type.value_bytes()) {
    const Coded sum = code(list);
    if (sum.message.size() <= bytes) {
      return sum;
    }
  }
  const std::span<std::byte> message = buffer(bytes).first(bytes);
  std::byte* next = message.data() + kFrontBytes;
  for (const CodedSelection& each : list.selections) {
    const SelectionHeader header{each.entries, each.code.size()};
    std::memcpy(next, &header, sizeof header);
    next = std::ranges::copy(each.code, next + sizeof header).out;
    next = std::fill_n(next, padded(header.bytes) - header.bytes, std::byte{0});
  }
  return {message, list.selections.size(), Header::kForwarded, 0};
}

List ListExchange::read_selections(const Header& header, std::span<std::byte> message,
                                   std::uint64_t ranks) {
  if (!plan_.forwards || header.flags != Header::kForwarded || header.count < 2 ||
      header.count > ranks || header.count_bytes != 0) {
    throw Damaged(fmt::format("{} selections, flags {:04x} and {} bytes of counts, expected {}",
                              header.count, header.flags, header.count_bytes,
                              plan_.forwards ? fmt::format("2 to {}", ranks) : "none"));
  }
  std::vector<List> lists;
  std::span<std::byte> rest = message.subspan(kFrontBytes);
  for (std::uint64_t i = 0; i < header.count; ++i) {
    SelectionHeader says;
    std::memcpy(&says, rest.data(), std::min(sizeof says, rest.size()));
    if (rest.size() < sizeof says || says.bytes > rest.size() - sizeof says ||
        padded(says.bytes) > rest.size() - sizeof says) {
      throw Damaged(fmt::format("selection {} of {} has more than the {} bytes that are left",
                                i + 1, header.count, rest.size()));
    }
    rest = rest.subspan(sizeof says);
    // In place of a header, the span begins with bytes that have already been read.
    const std::span<std::byte> one(rest.data() - kFrontBytes, kFrontBytes + says.bytes);
    List list = plan_.codec->decode(plan_.type, {says.entries, header.index_bytes, true}, one,
                                    plan_.leaf, plan_.d, *this);
    keep_selection(list, one);
    lists.push_back(list);
    rest = rest.subspan(padded(says.bytes));
  }
  if (!rest.empty()) {
    throw Damaged(fmt::format("{} bytes after {} selections", rest.size(), header.count));
  }
  return sum_of(lists);
}

List ListExchange::sum_of(std::span<List> lists) {
  const collectives::Tree tree(static_cast<std::uint32_t>(lists.size()));
  for (std::uint32_t leaf = 0; leaf < tree.leaves(); ++leaf) {
    const std::uint32_t rank = tree.rank_of(leaf);
    lists[leaf] = tree.folds(rank) ? unite(lists[rank], lists[rank + 1]) : lists[rank];
  }
  for (std::uint32_t nodes = tree.leaves() / 2; nodes > 0; nodes /= 2) {
    for (std::uint32_t node = 0; node < nodes; ++node) {
      lists[node] = unite(lists[2ULL * node], lists[2ULL * node + 1]);
    }
  }
  return lists.front();
}

}  // namespace gtopk::sparse
