#include "src/gtopk/algorithms/list_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gtopk/error.hpp"
#include "src/collectives/header.hpp"
#include "src/gtopk/wire/coded.hpp"

namespace gtopk::sparse {

using collectives::Header;
using collectives::Steps;
using engine::Message;
using engine::Task;

static_assert(kFrontBytes == collectives::kHeaderBytes);

std::size_t ListPlan::message_bytes(std::uint64_t ranks) const {
  const std::uint64_t entries = entries_of(ranks);
  const std::size_t bytes = codec->message_bytes(type, entries, d);
  return codec->rounds() ? std::max(bytes, kLossless.codec.message_bytes(type, entries, d)) : bytes;
}

Rounded ListExchange::round(const List& list, std::size_t count, bool answers,
                            bool zeros_are_lost) {
  if (!plan_.codec->rounds()) {
    return {.kept = count};
  }
  List lost;
  if (answers) {
    lost = make(count);  // never sent: only its memory is used
  }
  const Rounded rounded =
      plan_.codec->round(plan_.type, list, count, answers ? &lost : nullptr, zeros_are_lost);
  if (rounded.finite && rounded.lost != 0) {
    lost.size = rounded.lost;
    dropped_.at(lists_dropped_++) = lost;
  }
  return rounded;
}

void ListExchange::close_selection(List& list, std::size_t count, bool finite) {
  // An entry rounded to zero is not sent, so it is not cleared.
  const Rounded rounded = round(list, finite ? count : 0, true, false);
  list.rounded = true;
  close(list, rounded.kept, finite && rounded.finite);
  if (plan_.forwards && list.finite && group_.size() > 1) {
    keep_selection(list, plan_.codec->encode(plan_.type, list, plan_.d, *this));
  }
}

void ListExchange::close(List& list, std::size_t count, bool finite) const {
  list.finite = finite;
  plan_.codec->close(plan_.type, list, finite ? count : 0);
}

Task<List> ListExchange::swap(std::uint32_t partner, Steps steps, List mine, std::uint64_t ranks) {
  co_await departed();
  const std::span<std::byte> message = message_buffer(ranks);
  Message incoming = group_.recv(partner, steps.received, message);
  post(partner, steps.sent, mine);
  const std::size_t received = co_await incoming;
  Task<List> opening = open(message, received, partner, steps.received, ranks);
  const List theirs = co_await opening;
  co_return theirs;
}

Task<List> ListExchange::receive(std::uint32_t from, std::uint32_t step, std::uint64_t ranks) {
  const std::span<std::byte> message = message_buffer(ranks);
  Message incoming = group_.recv(from, step, message);
  const std::size_t received = co_await incoming;
  Task<List> opening = open(message, received, from, step, ranks);
  const List theirs = co_await opening;
  co_return theirs;
}

Task<void> ListExchange::send(std::uint32_t to, std::uint32_t step, List list) {
  co_await departed();
  post(to, step, list);
}

Task<void> ListExchange::departed() {
  if (leaving_) {
    co_await leaving_->over();
    leaving_.reset();
  }
}

void ListExchange::post(std::uint32_t to, std::uint32_t step, const List& list) {
  const Coded coded = list.selections.empty() ? code(list) : code_shortest(list);
  const std::uint32_t parts = parts_of(coded.message.size(), group_.connections(to));
  collectives::write_header(coded.message, group_,
                            {.count = coded.count,
                             .flags = coded.flags,
                             .index_bytes = plan_.type.index_bytes,
                             .parts = parts == 1 ? 0 : parts,
                             .count_bytes = coded.count_bytes});
  leaving_.emplace(group_, to, step, coded.message, parts);
}

ListExchange::Coded ListExchange::code(const List& list) {
  const bool unrounded = plan_.codec->rounds() && !list.rounded;
  const Codec& codec = unrounded ? kLossless.codec : *plan_.codec;
  const std::span<std::byte> entries = codec.encode(plan_.type, list, plan_.d, *this);
  const std::span<std::byte> message =
      list.counts == nullptr || list.size == 0 ? entries : with_counts(entries, list);
  const auto flags = static_cast<std::uint16_t>((list.finite ? 0 : Header::kNonFinite) |
                                                (unrounded ? Header::kUnrounded : 0));
  return {message, list.size, flags, message.size() - entries.size()};
}

void ListExchange::refuse(std::uint32_t from, std::string_view why) const {
  throw Error(ErrorKind::kMismatch,
              fmt::format("{} sent a damaged list: {}", group_.member(from), why));
}

Task<List> ListExchange::open(std::span<std::byte> message, std::size_t received,
                              std::uint32_t from, std::uint32_t step, std::uint64_t ranks) {
  Task<Header> reading =
      collectives::read_header(message.first(received), group_, from, kMostParts);
  const Header header = co_await reading;
  if (header.parts != 0) {
    Task<std::size_t> receiving =
        Departure::receive_rest(group_, from, step, message, received, header.parts);
    received = co_await receiving;
  }
  List list;
  try {
    const bool forwarded = (header.flags & Header::kForwarded) != 0;
    list = forwarded ? read_selections(header, message.first(received), ranks)
                     : read(header, message.first(received), ranks);
  } catch (const Damaged& damaged) {
    refuse(from, damaged.what());
  }
  Departure::acknowledge(group_, from, step, received);
  co_return list;
}

List ListExchange::read(const Header& header, std::span<std::byte> message, std::uint64_t ranks) {
  const bool finite = (header.flags & Header::kNonFinite) == 0;
  if (!finite && header.count != 0) {
    throw Damaged(fmt::format("{} entries of a step that did not happen", header.count));
  }
  const bool unrounded = (header.flags & Header::kUnrounded) != 0;
  if (unrounded && !plan_.codec->rounds()) {
    throw Damaged("values marked as unrounded on a wire that never rounds");
  }
  const Codec& codec = unrounded ? kLossless.codec : *plan_.codec;
  const ListHeader says{header.count, header.index_bytes, finite};
  const std::span<std::byte> entries = message.first(before_counts(header, message.size()));
  List list = codec.decode(plan_.type, says, entries, plan_.entries_of(ranks), plan_.d, *this);
  read_counts(message.subspan(entries.size(), header.count_bytes), list);
  list.finite = finite;
  list.rounded = !unrounded;
  if (plan_.forwards && finite && !unrounded) {
    keep_selection(list, entries);
  }
  return list;
}

// The functions below copy their lists before they make another one, because in a coroutine, g++ 12
// writes the result of `mine = exchange.merge(mine, theirs, speaker)` to `mine` itself while it is
// still being read.

List ListExchange::unite(const List& one, const List& other) {
  const List left = one;
  const List right = other;
  List sum = make(left.size + right.size);
  if (!left.finite || !right.finite) {
    close(sum, 0, false);
    return sum;
  }
  visit_entry(plan_.type, [&]<class Value, class Index>() {
    const Merged merged = sparse::unite<Value, Index>(
        left.entries<Value, Index>(), right.entries<Value, Index>(), sum.output<Value, Index>());
    close(sum, merged.kept, merged.finite);
  });
  add_up_counts(sum, left, right);
  join_selections(sum, left, right);
  return sum;
}

List ListExchange::merge(const List& one, const List& other, std::uint32_t speaker,
                         std::uint64_t keep) {
  const List left = one;
  const List right = other;
  if (!plan_.reselects) {
    return unite(left, right);
  }
  const std::size_t both = left.size + right.size;
  List node = make(std::min<std::size_t>(plan_.blocks ? plan_.k : keep, both));
  node.rounded = true;
  if (!left.finite || !right.finite) {
    close(node, 0, false);
    return node;
  }
  const bool answers = speaker == group_.rank();
  visit_entry(plan_.type, [&]<class Value, class Index>() {
    const Entries<Value, Index> a = left.entries<Value, Index>();
    const Entries<Value, Index> b = right.entries<Value, Index>();
    const EntriesOut<Value, Index> kept = node.output<Value, Index>();
    const auto merge_into = [&](EntriesOut<Value, Index>* dropped) {
      return plan_.blocks ? sparse::merge<Value, Index>(a, b, plan_.blocks, kept, dropped, scratch_)
                          : sparse::merge<Value, Index>(a, b, keep, kept, dropped, scratch_);
    };
    Merged merged;
    if (!answers) {
      merged = merge_into(nullptr);
    } else {
      List list = make(both);  // never sent: only its memory is used
      EntriesOut<Value, Index> dropped = list.output<Value, Index>();
      merged = merge_into(&dropped);
      if (merged.finite && merged.dropped != 0) {
        list.size = merged.dropped;
        dropped_.at(lists_dropped_++) = list;
      }
    }
    const Rounded rounded = round(node, merged.finite ? merged.kept : 0, answers, true);
    close(node, rounded.kept, merged.finite && rounded.finite);
  });
  return node;
}

template <class Divide>
List ListExchange::cut_by(const List& whole, Divide divide) {
  const List list = whole;
  List kept = make(list.size);
  List rest = make(list.size);  // never sent: only its memory is used
  visit_entry(plan_.type, [&]<class Value, class Index>() {
    const Merged merged = divide.template operator()<Value, Index>(
        list.entries<Value, Index>(), kept.output<Value, Index>(), rest.output<Value, Index>());
    if (merged.dropped != 0) {
      rest.size = merged.dropped;
      dropped_.at(lists_dropped_++) = rest;
    }
    kept.rounded = list.rounded && plan_.codec->parts_are_rounded();
    close(kept, merged.kept, list.finite);
  });
  add_up_counts(kept, list, {});
  return kept;
}

List ListExchange::cut(const List& list) {
  return cut_by(list, [&]<class Value, class Index>(Entries<Value, Index> entries,
                                                    EntriesOut<Value, Index> kept,
                                                    EntriesOut<Value, Index> rest) {
    return sparse::cut<Value, Index>(entries, plan_.blocks, kept, rest, scratch_);
  });
}

List ListExchange::cut(const List& list, std::uint64_t key, std::uint64_t equals) {
  return cut_by(list, [&]<class Value, class Index>(Entries<Value, Index> entries,
                                                    EntriesOut<Value, Index> kept,
                                                    EntriesOut<Value, Index> rest) {
    return sparse::cut<Value, Index>(entries, static_cast<Key<Value>>(key), equals, kept, rest);
  });
}

List ListExchange::part(const List& list, std::uint64_t begin, std::uint64_t end) const {
  List part = list;
  visit_entry(plan_.type, [&]<class Value, class Index>() {
    const Entries<Value, Index> entries = list.entries<Value, Index>();
    const Index* const last = entries.indices + entries.size;
    const Index* const from = std::lower_bound(entries.indices, last, begin);
    part.size = static_cast<std::size_t>(std::lower_bound(from, last, end) - from);
    const auto skipped = static_cast<std::size_t>(from - entries.indices);
    part.indices += skipped * sizeof(Index);
    part.values += skipped * sizeof(Value);
    part.counts = part.counts == nullptr ? nullptr : part.counts + skipped;
  });
  part.capacity = part.size;
  part.memory = {};
  return part;
}

List ListExchange::copied(const List& part) {
  List copy = joined(part, {});
  copy.rounded = part.rounded && plan_.codec->parts_are_rounded();
  return copy;
}

List ListExchange::joined(const List& lower, const List& higher) {
  const List low = lower;
  const List high = higher;
  List both = make(low.size + high.size);
  visit_entry(plan_.type, [&]<class Value, class Index>() {
    const EntriesOut<Value, Index> output = both.output<Value, Index>();
    const Entries<Value, Index> first = low.entries<Value, Index>();
    const Entries<Value, Index> second = high.entries<Value, Index>();
    std::copy_n(first.indices, first.size, output.indices);
    std::copy_n(first.values, first.size, output.values);
    std::copy_n(second.indices, second.size, output.indices + first.size);
    std::copy_n(second.values, second.size, output.values + first.size);
  });
  both.rounded = low.rounded && high.rounded && plan_.codec->parts_are_rounded();
  close(both, low.size + high.size, low.finite && high.finite);
  if (low.counts != nullptr || high.counts != nullptr) {
    add_up_counts(both, low, high);
  }
  return both;
}

}  // namespace gtopk::sparse
