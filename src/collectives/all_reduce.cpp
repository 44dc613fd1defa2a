#include "collectives/all_reduce.hpp"

#include <cstring>

#include "collectives/agreement.hpp"
#include "collectives/reduction.hpp"
#include "collectives/ring.hpp"
#include "collectives/tree.hpp"

namespace gtopk::collectives {
namespace {

using engine::GroupView;
using engine::Message;
using engine::Task;

/// Sums of the tree: left + right at every node, the same on all ranks.
Task<void> recursive_doubling(GroupView& group, const Signature& signature, void* data,
                              std::uint64_t d, DataType type, ReduceOp op) {
  const engine::CallText text(group, [&signature] { return describe(signature); });
  const Tree tree(group.size());
  const std::uint32_t rank = group.rank();
  const std::size_t bytes = d * size_of(type);
  std::span<std::byte> mine = group.buffer(kHeaderBytes + bytes);
  std::span<std::byte> sum = group.buffer(kHeaderBytes + bytes);
  const std::span<std::byte> theirs = group.buffer(kHeaderBytes + bytes);
  write_header(mine, signature, group.sequence(), {.count = d});
  write_header(sum, signature, group.sequence(), {.count = d});
  if (bytes != 0) std::memcpy(mine.data() + kHeaderBytes, data, bytes);

  const auto check = [&](std::size_t received, std::uint32_t from) {
    require_payload(read_header(theirs.first(received), signature, group, from), d, group, from);
    require_length(received - kHeaderBytes, bytes, group, from);
  };
  const auto add = [&](std::span<std::byte> left, std::span<std::byte> right) {
    reduce(sum.data() + kHeaderBytes, left.data() + kHeaderBytes, right.data() + kHeaderBytes, d,
           type, op);
    std::swap(sum, mine);
  };

  if (tree.folded_away(rank)) {
    const std::uint32_t other = Tree::fold_partner(rank);
    Message result = group.recv(other, tree.unfold_step(), theirs);
    Message values = group.send(other, Tree::fold_step(), mine);
    const std::size_t received = co_await result;
    check(received, other);
    co_await values;
    if (bytes != 0) std::memcpy(data, theirs.data() + kHeaderBytes, bytes);
    co_return;
  }
  if (tree.folds(rank)) {
    const std::uint32_t other = Tree::fold_partner(rank);
    Message values = group.recv(other, Tree::fold_step(), theirs);
    const std::size_t received = co_await values;
    check(received, other);
    add(mine, theirs);
  }
  for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
    const std::uint32_t other = tree.partner(rank, round);
    Message incoming = group.recv(other, Tree::round_step(round), theirs);
    Message outgoing = group.send(other, Tree::round_step(round), mine);
    const std::size_t received = co_await incoming;
    check(received, other);
    co_await outgoing;  // `sum` becomes the next message: nothing may still be read from it
    if (tree.on_left(rank, round)) {
      add(mine, theirs);
    } else {
      add(theirs, mine);
    }
  }
  if (tree.folds(rank)) {
    Message result = group.send(Tree::fold_partner(rank), tree.unfold_step(), mine);
    co_await result;
  }
  if (bytes != 0) std::memcpy(data, mine.data() + kHeaderBytes, bytes);
}

}  // namespace

Task<void> all_reduce(GroupView& group, const Signature& signature, void* data, std::uint64_t d,
                      DataType type, ReduceOp op) {
  if (d * size_of(type) <= kRecursiveDoublingBytes) {
    co_await recursive_doubling(group, signature, data, d, type, op);
  } else {
    const engine::CallText text(group, [&signature] { return describe(signature); });
    co_await agree(group, signature);
    if (group.size() > 1) co_await ring_all_reduce(group, data, d, type, op);
  }
  if (op == ReduceOp::kAvg) divide(data, d, type, group.size());
}

}  // namespace gtopk::collectives
