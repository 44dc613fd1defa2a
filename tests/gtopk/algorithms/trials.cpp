// Trials, as a user would add his own: an algorithm, a selector and a codec, a function and a row
// each. Nothing else knows them, and every test over the registries runs them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "src/collectives/fold.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/select/selector.hpp"
#include "src/gtopk/wire/codec.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {
namespace {

using collectives::Tree;
using engine::Task;

// gTop-k up the tree; the root then sends straight to every leaf.

Task<List> up_and_out(ListExchange& exchange, const Tree& tree, std::uint32_t rank, List mine) {
  std::uint32_t round = 0;
  for (; round < tree.rounds() && tree.on_left(rank, round); ++round) {
    Task<List> receiving =
        exchange.receive(tree.partner(rank, round), Tree::round_step(round), 2ULL << round);
    const List theirs = co_await receiving;
    mine = exchange.merge(mine, theirs, rank);
  }
  if (tree.leaf(rank) == 0) {
    for (std::uint32_t leaf = 1; leaf < tree.leaves(); ++leaf) {
      Task<void> sending = exchange.send(tree.rank_of(leaf), tree.end_step(), mine);
      co_await sending;
    }
    co_return mine;
  }
  Task<void> handing_over = exchange.send(tree.partner(rank, round), Tree::round_step(round), mine);
  co_await handing_over;
  Task<List> receiving = exchange.receive(tree.rank_of(0), tree.end_step(), tree.ranks());
  const List result = co_await receiving;
  co_return result;
}

Task<List> flat(ListExchange& exchange, List mine) { return walk_tree(exchange, mine, up_and_out); }

const AlgorithmRow kFlat{
    .name = "trial-flat", .description = "gTop-k with a flat broadcast", .walk = flat};

// The k largest, by sorting all.

template <class T, class Index>
Selection sort_all(const SelectionInput& input, const List& out) {
  using Value = Accumulation<T>;
  const auto* const residual = static_cast<const Value*>(input.residual);
  std::vector<std::pair<Value, Index>> entries;
  bool finite = true;
  for_each_segment(
      Segments<T>(input.tensor), input.d, [&](const T* data, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
          const Value acc =
              accumulate_one(data[i - begin], residual == nullptr ? Value{0} : residual[i]);
          finite &= std::isfinite(acc);
          if (acc != 0) {
            entries.emplace_back(acc, static_cast<Index>(i));
          }
        }
      });
  if (!finite) {
    return {.count = 0, .finite = false};
  }
  std::ranges::sort(entries, [](const auto& a, const auto& b) {
    const Value left = std::abs(a.first);
    const Value right = std::abs(b.first);
    return left != right ? left > right : a.second < b.second;
  });
  entries.resize(std::min<std::size_t>(entries.size(), input.k));
  std::ranges::sort(entries, {}, &std::pair<Value, Index>::second);
  const EntriesOut<Value, Index> output = out.output<Value, Index>();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    output.values[i] = entries[i].first;
    output.indices[i] = entries[i].second;
  }
  return {.count = entries.size(), .finite = true};
}

Selection sorted(const SelectionInput& input, const List& out, SelectScratch& /*scratch*/) {
  Selection selection;
  visit_floating(input.dtype, [&]<class T>() {
    selection = input.entry.index_bytes == 8 ? sort_all<T, std::uint64_t>(input, out)
                                             : sort_all<T, std::uint32_t>(input, out);
  });
  return selection;
}

const SelectorRow kSorted{"trial-sorted", "the k largest, by sorting all", sorted};

// Index gaps in groups of 7 bits, behind the values.

class Deltas final : public Codec {
 public:
  List make(EntryType type, std::size_t capacity, BufferSource& buffers) const override {
    List list;
    list.memory = buffers.buffer(capacity * type.bytes());
    list.capacity = capacity;
    lay_out(type, list, list.memory.data(), capacity);
    return list;
  }

  void close(EntryType /*type*/, List& list, std::size_t count) const override {
    list.size = count;
  }

  std::size_t message_bytes(EntryType type, std::size_t capacity,
                            std::uint64_t /*d*/) const override {
    return kFrontBytes + capacity * (type.value_bytes() + kLongest);
  }

  std::span<std::byte> encode(EntryType type, const List& list, std::uint64_t d,
                              BufferSource& buffers) const override {
    const std::span<std::byte> message = buffers.buffer(message_bytes(type, list.size, d));
    std::byte* at = message.data() + kFrontBytes;
    if (list.size != 0) {
      std::memcpy(at, list.values, list.size * type.value_bytes());
    }
    at += list.size * type.value_bytes();
    std::uint64_t before = 0;
    for (std::size_t i = 0; i < list.size; ++i) {
      const std::uint64_t index = index_of(type, list, i);
      for (std::uint64_t rest = index - before;; rest >>= 7U) {
        *at++ = static_cast<std::byte>((rest & 0x7FU) | (rest > 0x7FU ? 0x80U : 0U));
        if (rest <= 0x7FU) {
          break;
        }
      }
      before = index;
    }
    return message.first(static_cast<std::size_t>(at - message.data()));
  }

  List decode(EntryType type, const ListHeader& says, std::span<std::byte> message,
              std::size_t capacity, std::uint64_t d, BufferSource& buffers) const override {
    if (says.index_bytes != type.index_bytes) {
      throw Damaged("-byte indices of another width");
    }
    if (says.count > capacity) {
      throw Damaged("too many entries");
    }
    const std::size_t values = says.count * type.value_bytes();
    if (message.size() < kFrontBytes + values) {
      throw Damaged("cut");
    }
    std::vector<std::uint64_t> indices;
    std::span<const std::byte> rest = message.subspan(kFrontBytes + values);
    for (std::size_t i = 0; i < says.count; ++i) {
      const std::uint64_t delta = take(rest);
      const std::uint64_t before = i == 0 ? 0 : indices.back();
      if (delta >= d || before + delta >= d || (i != 0 && delta == 0)) {
        throw Damaged("an index");
      }
      indices.push_back(before + delta);
    }
    if (!rest.empty()) {
      throw Damaged("bytes behind the last index");
    }
    List list = make(type, says.count, buffers);
    list.size = says.count;
    if (values != 0) {
      std::memcpy(list.values, message.data() + kFrontBytes, values);
    }
    visit_entry(type, [&]<class Value, class Index>() {
      std::ranges::transform(indices, list.output<Value, Index>().indices,
                             [](std::uint64_t index) { return static_cast<Index>(index); });
    });
    return list;
  }

 private:
  static constexpr std::size_t kLongest = 10;

  static std::uint64_t index_of(EntryType type, const List& list, std::size_t i) {
    std::uint64_t index = 0;
    visit_entry(
        type, [&]<class Value, class Index>() { index = list.entries<Value, Index>().indices[i]; });
    return index;
  }

  static std::uint64_t take(std::span<const std::byte>& rest) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < rest.size() && i < kLongest; ++i) {
      const auto group = static_cast<std::uint64_t>(rest[i]);
      value |= (group & 0x7FU) << (7 * i);
      if (group <= 0x7FU) {
        if (i != 0 && group == 0) {
          break;
        }
        rest = rest.subspan(i + 1);
        return value;
      }
    }
    throw Damaged("an index");
  }
};

const Deltas kDeltas{};
const CodecRow kDelta{"trial-delta", "distances of indices, 7 bits a group", kDeltas};

[[maybe_unused]] const bool kAdded = [] {
  algorithm_registry().add(kFlat);
  selector_registry().add(kSorted);
  codec_registry().add(kDelta);
  return true;
}();

}  // namespace
}  // namespace gtopk::sparse
