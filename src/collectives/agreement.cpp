#include "collectives/agreement.hpp"

#include "collectives/tree.hpp"

namespace gtopk::collectives {

using engine::GroupView;
using engine::Message;
using engine::Task;

Task<void> agree(GroupView& group, const Signature& signature) {
  const engine::CallText text(group, [&signature] { return describe(signature); });
  const Tree tree(group.size());
  const std::uint32_t rank = group.rank();
  const std::span<std::byte> mine = group.buffer(kHeaderBytes);
  const std::span<std::byte> theirs = group.buffer(kHeaderBytes);
  write_header(mine, signature, group.sequence());

  if (tree.folds(rank)) {
    const std::uint32_t other = Tree::fold_partner(rank);
    if (tree.folded_away(rank)) {
      Message answer = group.recv(other, tree.unfold_step(), theirs);
      Message question = group.send(other, Tree::fold_step(), mine);
      co_await question;
      const std::size_t bytes = co_await answer;
      require_payload(read_header(theirs.first(bytes), signature, group, other), 0, group, other);
      co_return;
    }
    Message question = group.recv(other, Tree::fold_step(), theirs);
    const std::size_t bytes = co_await question;
    require_payload(read_header(theirs.first(bytes), signature, group, other), 0, group, other);
  }
  for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
    const std::uint32_t other = tree.partner(rank, round);
    Message incoming = group.recv(other, Tree::round_step(round), theirs);
    Message outgoing = group.send(other, Tree::round_step(round), mine);
    const std::size_t bytes = co_await incoming;
    require_payload(read_header(theirs.first(bytes), signature, group, other), 0, group, other);
    co_await outgoing;
  }
  if (tree.folds(rank)) {
    Message answer = group.send(Tree::fold_partner(rank), tree.unfold_step(), mine);
    co_await answer;
  }
}

}  // namespace gtopk::collectives
