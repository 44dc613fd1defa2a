#include "src/collectives/direct.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/reduction.hpp"

namespace gtopk::collectives {
namespace {

using engine::GroupView;
using engine::Message;
using engine::Task;
using Item = std::span<std::byte>;

Item after_header(Item message) { return message.subspan(kHeaderBytes); }

/// A buffer for a header and this many bytes.
Item buffer_for(GroupView& group, std::size_t bytes) { return group.buffer(kHeaderBytes + bytes); }

Item message_of(GroupView& group, std::uint64_t count, std::size_t bytes) {
  const Item message = buffer_for(group, bytes);
  write_header(message, group, {.count = count, .flags = Header::kOtherWay});
  return message;
}

/// Makes one item for each rank; they live as long as the operation.
std::span<Item> items(GroupView& group) {
  auto* const made = reinterpret_cast<Item*>(group.buffer(group.size() * sizeof(Item)).data());
  std::uninitialized_value_construct_n(made, group.size());
  return {made, group.size()};
}

/// The receiver in a round: in round s, a rank sends to rank + s.
std::uint32_t sent_to(const GroupView& group, std::uint32_t round) {
  return (group.rank() + round) % group.size();
}
std::uint32_t heard_from(const GroupView& group, std::uint32_t round) {
  return (group.rank() + group.size() - round) % group.size();
}

/// The other ranks, starting with the ranks from which this rank hears along the tree, in its
/// order. Ranks that called something else may send only to these, and then wait.
std::vector<std::uint32_t> as_along_tree(const GroupView& group, const Tree& tree) {
  std::vector<std::uint32_t> senders;
  senders.reserve(group.size());
  for (std::uint32_t round = 1; round < group.size(); ++round) {
    senders.push_back(heard_from(group, round));
  }
  std::ranges::sort(senders, {}, [&](std::uint32_t from) {
    return std::pair(direct_step(tree, from, group.rank()),
                     (group.rank() + group.size() - from) % group.size());
  });
  return senders;
}

Task<void> all_sent(std::vector<Message>& outgoing) {
  for (Message& message : outgoing) {
    co_await message;
  }
}

/// Swaps messages with all other ranks. `leaving` holds the message to each rank, and `arriving`
/// the buffer for each rank's message, of exactly its size. This rank's own items are ignored.
/// `count` is the number of elements that the header of `from` must announce. Returns when the sent
/// messages have drained, too.
template <class Count>
Task<void> swap_with_all(GroupView& group, std::uint32_t first_step, std::span<const Item> leaving,
                         std::span<const Item> arriving, Count count) {
  const Tree tree(group.size());
  const std::uint32_t rank = group.rank();
  std::vector<Message> incoming;
  std::vector<Message> outgoing;
  incoming.reserve(group.size());
  outgoing.reserve(group.size());
  const std::vector<std::uint32_t> senders = as_along_tree(group, tree);
  for (const std::uint32_t from : senders) {
    incoming.push_back(
        group.recv(from, first_step + direct_step(tree, from, rank), arriving[from]));
  }
  for (std::uint32_t round = 1; round < group.size(); ++round) {
    const std::uint32_t to = sent_to(group, round);
    outgoing.push_back(group.send(to, first_step + direct_step(tree, rank, to), leaving[to]));
  }
  for (std::size_t i = 0; i < senders.size(); ++i) {
    const std::uint32_t from = senders[i];
    Message& message = incoming[i];
    const std::size_t received = co_await message;
    Task<Header> reading = read_header(arriving[from].first(received), group, from);
    const Header header = co_await reading;
    require_payload(header, {.count = count(from), .flags = Header::kOtherWay}, group, from);
    require_length(received, arriving[from].size(), group, from);
  }
  co_await all_sent(outgoing);
}

/// Computes left + right at every node of the tree, in some of these buffers; returns the buffer
/// that has the sum.
std::byte* sum_along_tree(const Tree& tree, std::span<const Item> of_rank, std::uint64_t elements,
                          DataType type, ReduceOp op) {
  const auto at = [&](std::uint32_t leaf) { return of_rank[tree.rank_of(leaf)].data(); };
  for (std::uint32_t leaf = 0; leaf < tree.leaves(); ++leaf) {
    const std::uint32_t rank = tree.rank_of(leaf);
    if (tree.folds(rank)) {
      reduce(at(leaf), at(leaf), of_rank[Tree::fold_partner(rank)].data(), elements, type, op);
    }
  }
  for (std::uint32_t apart = 1; apart < tree.leaves(); apart *= 2) {
    for (std::uint32_t leaf = 0; leaf < tree.leaves(); leaf += 2 * apart) {
      reduce(at(leaf), at(leaf), at(leaf + apart), elements, type, op);
    }
  }
  return at(0);
}

/// Copies bytes. If `bytes` is 0, it copies nothing, because pointers may be null then.
void copy_bytes(void* into, const void* from, std::size_t bytes) {
  if (bytes != 0) {
    std::memcpy(into, from, bytes);
  }
}

}  // namespace

std::uint32_t direct_step(const Tree& tree, std::uint32_t from, std::uint32_t to) {
  if (tree.folds(from) && to == Tree::fold_partner(from)) {
    return tree.folded_away(from) ? Tree::fold_step() : tree.unfold_step();
  }
  if (!tree.folded_away(from) && !tree.folded_away(to)) {
    const std::uint32_t apart = tree.leaf(from) ^ tree.leaf(to);
    if (std::has_single_bit(apart)) {
      return Tree::round_step(static_cast<std::uint32_t>(std::countr_zero(apart)));
    }
  }
  return tree.down_step(0);
}

Task<void> swap_directly(GroupView& group, std::size_t bytes, std::uint32_t first_step) {
  const std::span<Item> leaving = items(group);
  const std::span<Item> arriving = items(group);
  std::ranges::fill(leaving, message_of(group, bytes, bytes));
  std::ranges::fill(after_header(leaving[0]), std::byte{0});
  std::ranges::generate(arriving, [&] { return buffer_for(group, bytes); });
  co_await swap_with_all(group, first_step, leaving, arriving,
                         [bytes](std::uint32_t /*from*/) { return bytes; });
}

Task<void> reduce_scatter_directly(GroupView& group, std::span<const Segment> parts, void* output,
                                   DataType type, ReduceOp op, double factor) {
  const std::size_t element = size_of(type);
  const std::uint32_t rank = group.rank();
  const std::uint64_t own = parts[rank].size;
  const std::span<Item> leaving = items(group);
  const std::span<Item> arriving = items(group);
  for (std::uint32_t other = 0; other < group.size(); ++other) {
    const Segment part = parts[other];
    leaving[other] = message_of(group, part.size, part.size * element);
    const Item values = after_header(leaving[other]);
    copy_bytes(values.data(), part.data, values.size());
    if (op == ReduceOp::kPremulSum) {
      multiply(values.data(), part.size, type, factor);
    }
    arriving[other] = other == rank ? leaving[rank] : buffer_for(group, own * element);
  }
  co_await swap_with_all(group, 0, leaving, arriving,
                         [own](std::uint32_t /*from*/) { return own; });
  std::ranges::transform(arriving, arriving.begin(), after_header);
  const std::byte* const sum = sum_along_tree(Tree(group.size()), arriving, own, type, op);
  copy_bytes(output, sum, own * element);
}

Task<void> reduce_directly(GroupView& group, void* data, std::uint64_t d, DataType type,
                           ReduceOp op, double factor) {
  const std::uint32_t ranks = group.size();
  const std::size_t element = size_of(type);
  const Item result = group.buffer(d * element);
  std::vector<Segment> parts;
  std::vector<Item> sums;
  for (std::uint32_t part = 0; part < ranks; ++part) {
    const std::uint64_t begin = chunk_begin(d, ranks, part);
    const std::uint64_t size = chunk_begin(d, ranks, part + 1) - begin;
    parts.push_back({static_cast<std::byte*>(data) + begin * element, size});
    sums.push_back(result.subspan(begin * element, size * element));
  }
  const std::uint32_t step = Tree(ranks).end_step();
  std::vector<Message> incoming;
  std::vector<Message> outgoing;
  // These are posted first because another rank may have its sum before this one.
  for (std::uint32_t round = 1; round < ranks; ++round) {
    const std::uint32_t from = heard_from(group, round);
    incoming.push_back(group.recv(from, step, sums[from]));
  }
  const Item mine = sums[group.rank()];
  co_await reduce_scatter_directly(group, parts, mine.data(), type, op, factor);
  for (std::uint32_t round = 1; round < ranks; ++round) {
    outgoing.push_back(group.send(sent_to(group, round), step, mine));
  }
  for (std::uint32_t round = 1; round < ranks; ++round) {
    const std::uint32_t from = heard_from(group, round);
    Message& message = incoming[round - 1];
    const std::size_t received = co_await message;
    require_length(received, sums[from].size(), group, from);
  }
  co_await all_sent(outgoing);
  copy_bytes(data, result.data(), result.size());
}

Task<void> gather_directly(GroupView& group, std::span<const Bytes> buffers) {
  const std::uint32_t rank = group.rank();
  const Item own = buffers[rank].host();
  const std::span<Item> leaving = items(group);
  const std::span<Item> arriving = items(group);
  std::ranges::fill(leaving, message_of(group, own.size(), own.size()));
  copy_bytes(after_header(leaving[0]).data(), own.data(), own.size());
  for (std::uint32_t other = 0; other < group.size(); ++other) {
    arriving[other] = other == rank ? Item{} : buffer_for(group, buffers[other].size());
  }
  co_await swap_with_all(group, 0, leaving, arriving,
                         [buffers](std::uint32_t from) { return buffers[from].size(); });
  for (std::uint32_t other = 0; other < group.size(); ++other) {
    if (other != rank) {
      const Item came = after_header(arriving[other]);
      copy_bytes(buffers[other].host().data(), came.data(), came.size());
    }
  }
}

}  // namespace gtopk::collectives
