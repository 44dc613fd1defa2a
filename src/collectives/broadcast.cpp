// Collectives: one rank's bytes to all: the ranks agree, then a binomial tree from the root, in
// pieces that are passed on as they arrive. At most log2 P + 1 sends of the data per rank, P-1 in
// total.

#include <algorithm>
#include <bit>
#include <deque>

#include "gtopk/collectives.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/memory.hpp"
#include "src/collectives/tree.hpp"

namespace gtopk {
namespace {

using collectives::kPieceBytes;
using collectives::Tree;
using engine::GroupView;
using engine::Message;
using engine::Task;

Task<void> broadcast_from(GroupView& group, std::uint32_t root, Bytes data) {
  co_await collectives::agree(group);
  if (data.empty() || group.size() == 1) {
    co_return;
  }

  // Ranks are counted from the root. A rank's parent is the rank without its lowest set bit; its
  // children add lower bits.
  const std::uint32_t ranks = group.size();
  const std::uint32_t place = (group.rank() + ranks - root) % ranks;
  const auto rank_at = [&](std::uint32_t at) { return (at + root) % ranks; };
  const std::uint32_t lowest = place == 0 ? std::bit_ceil(ranks) : (place & (~place + 1));
  const std::uint32_t parent = rank_at(place - (place == 0 ? 0 : lowest));
  const std::uint32_t step = Tree(ranks).end_step();

  const std::size_t pieces = (data.size() + kPieceBytes - 1) / kPieceBytes;
  const auto piece = [&](std::size_t number) {
    const std::size_t begin = number * kPieceBytes;
    return data.subspan(begin, std::min(kPieceBytes, data.size() - begin));
  };
  std::deque<Message> incoming;
  std::deque<Message> outgoing;
  if (place != 0) {
    for (std::size_t number = 0; number < pieces; ++number) {
      const auto chunk = static_cast<std::uint32_t>(number);
      incoming.push_back(group.recv(parent, step, piece(number), chunk));
    }
  }
  for (std::size_t number = 0; number < pieces; ++number) {
    const auto chunk = static_cast<std::uint32_t>(number);
    if (place != 0) {
      Message& expected = incoming.front();
      const std::size_t received = co_await expected;
      incoming.pop_front();
      collectives::require_length(received, piece(number).size(), group, parent);
    }
    for (std::uint32_t bit = lowest / 2; bit > 0; bit /= 2) {
      if (place + bit >= ranks) {
        continue;
      }
      outgoing.push_back(group.send_dealt(rank_at(place + bit), step, piece(number), chunk));
    }
  }
  while (!outgoing.empty()) {
    Message& oldest = outgoing.front();
    co_await oldest;
    outgoing.pop_front();
  }
}

}  // namespace

Collective broadcast(Buffer data, std::uint32_t root) {
  const Bytes bytes = data.bytes();
  Collective collective;
  collective.name = "broadcast";
  collective.agreement = Agreement("broadcast")
                             .number("bytes", bytes.size())
                             .type("dtype", data.dtype)
                             .number("root", root);
  collective.check = [root](const GroupShape& group) { group.check_rank(root, "the root"); };
  collective.body = [=](GroupView& group) { return broadcast_from(group, root, bytes); };
  collectives::take_moved(collective, bytes.memory());
  return collective;
}

}  // namespace gtopk
