// Collectives: sends one rank's bytes to all. A small amount is sent with the headers by which the
// ranks agree, along the tree or directly (direct.hpp). Otherwise the ranks agree first. Then a
// binomial tree or a chain leads from the root to one rank of each host, and a tree to the host's
// other ranks, in pieces that are passed on as they arrive. The data is sent P-1 times in total.

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/broadcast_tree.hpp"
#include "src/collectives/direct.hpp"
#include "src/collectives/fold.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/memory.hpp"
#include "src/collectives/path_costs.hpp"
#include "src/collectives/tree.hpp"

namespace gtopk {
namespace {

using collectives::BetweenHosts;
using collectives::BroadcastTree;
using collectives::DensePaths;
using collectives::folded;
using collectives::Header;
using collectives::kHeaderBytes;
using collectives::PathChoice;
using collectives::PathSetting;
using collectives::Steps;
using collectives::Tree;
using engine::GroupView;
using engine::Message;
using engine::Task;

/// Whether this many bytes are copied into the headers' messages.
constexpr bool go_with_headers(std::size_t bytes) { return bytes != 0 && bytes <= kShortBroadcast; }

/// Each message is a header, followed by the root's data if the sender has it.
class RootsData {
 public:
  using Item = std::span<std::byte>;

  RootsData(GroupView& group, std::uint32_t root, std::span<const std::byte> data)
      : group_(group),
        root_(root),
        bytes_(data.size()),
        header_(message(0)),
        heard_(group.buffer(kHeaderBytes + bytes_)),
        data_(message(bytes_)) {
    if (group.rank() == root) {
      std::memcpy(data_.data() + kHeaderBytes, data.data(), bytes_);
    }
  }

  [[nodiscard]] Item mine() const { return group_.rank() == root_ ? data_ : header_; }
  [[nodiscard]] static Item data_of(Item message) { return message.subspan(kHeaderBytes); }

  Task<Item> swap(std::uint32_t partner, Steps steps, Item mine, std::uint64_t /*ranks*/) {
    const Item buffer = data_of(mine).empty() ? data_ : heard_;
    Message incoming = group_.recv(partner, steps.received, buffer);
    co_await send(partner, steps.sent, mine);
    const std::size_t received = co_await incoming;
    co_await check(buffer.first(received), partner);
    co_return buffer.first(received);
  }

  Task<Item> receive(std::uint32_t from, std::uint32_t step, std::uint64_t /*ranks*/) {
    const Item buffer = group_.rank() == root_ ? heard_ : data_;
    Message incoming = group_.recv(from, step, buffer);
    const std::size_t received = co_await incoming;
    co_await check(buffer.first(received), from);
    co_return buffer.first(received);
  }

  /// Sent data is not written again, so the send may drain later.
  Task<void> send(std::uint32_t to, std::uint32_t step, Item item) {
    co_await departed();
    leaving_.emplace(group_.send(to, step, to == root_ ? header_ : item));
  }

  static Item merge(Item mine, Item theirs, std::uint32_t /*speaker*/) {
    return data_of(theirs).empty() ? mine : theirs;
  }

  /// Returns once the last send has drained.
  Task<void> departed() {
    if (leaving_) {
      Message& leaving = *leaving_;
      co_await leaving;
      leaving_.reset();
    }
  }

 private:
  Item message(std::size_t bytes) {
    const Item item = group_.buffer(kHeaderBytes + bytes);
    collectives::write_header(item, group_, {.count = bytes});
    return item;
  }

  Task<void> check(Item message, std::uint32_t from) {
    Task<Header> reading = collectives::read_header(message, group_, from);
    const Header header = co_await reading;
    const std::size_t expected = header.count == 0 ? 0 : bytes_;
    collectives::require_payload(header, {.count = expected}, group_, from);
    collectives::require_length(message.size() - kHeaderBytes, expected, group_, from);
  }

  GroupView& group_;
  std::uint32_t root_;
  std::size_t bytes_;
  Item header_;
  /// The buffer in which a rank that has the data receives headers. It has the size of a message
  /// with data, because a rank that names another root sends one.
  Item heard_;
  Item data_;
  std::optional<Message> leaving_;
};

/// In each round, the half of a node that contains the root sends the data to the other half.
Task<RootsData::Item> rounds(RootsData& exchange, const Tree& tree, std::uint32_t rank,
                             RootsData::Item mine) {
  for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
    const std::uint32_t step = Tree::round_step(round);
    Task<RootsData::Item> swapping =
        exchange.swap(tree.partner(rank, round), {step, step}, mine, 2U << round);
    const RootsData::Item theirs = co_await swapping;
    mine = RootsData::merge(mine, theirs, 0);
  }
  co_return mine;
}

Task<void> broadcast_with_headers(GroupView& group, std::uint32_t root, std::span<std::byte> data) {
  RootsData exchange(group, root, data);
  const Tree tree(group.size());
  Task<RootsData::Item> walking = folded(exchange, tree, group.rank(), exchange.mine(), rounds);
  const RootsData::Item result = co_await walking;
  co_await exchange.departed();
  if (group.rank() == root) {
    co_return;
  }
  const RootsData::Item received = RootsData::data_of(result);
  if (received.size() != data.size()) {
    throw Error(ErrorKind::kMismatch,
                fmt::format("nobody sent the data of {}, the root", group.member(root)));
  }
  std::memcpy(data.data(), received.data(), data.size());
}

Task<void> broadcast_few(GroupView& group, std::uint32_t root, Bytes data) {
  PathChoice choice(group);
  bool directly = false;
  // Along the tree, three ranks send three messages one after the other. With more ranks, the
  // direct path would send more messages than the tree, which measurements show to be slower.
  if (group.size() == 3 || choice.setting() == PathSetting::kDirect) {
    Task<bool> choosing = choice.directly(&DensePaths::broadcast_directly, data.size());
    directly = co_await choosing;
  }
  if (directly) {
    // The root sends to all; the other ranks' parts have no bytes.
    std::vector<Bytes> buffers(group.size(), data.subspan(0, 0));
    buffers[root] = data;
    co_await collectives::gather_directly(group, buffers);
    co_return;
  }
  co_await broadcast_with_headers(group, root, data.host());
}

Task<void> broadcast_from(GroupView& group, std::uint32_t root, Bytes data) {
  if (go_with_headers(data.size()) && group.size() > 1) {
    co_await broadcast_few(group, root, data);
    co_return;
  }
  if (data.empty() || group.size() == 1) {
    co_await collectives::agree(group);
    co_return;
  }

  PathChoice choice(group);
  bool chain = false;
  if (choice.paths().hosts() > 2) {
    Task<bool> choosing = choice.directly(&DensePaths::broadcast_down_a_chain, data.size());
    chain = co_await choosing;
  }
  const BroadcastTree tree(group.hosts(), root, group.rank(),
                           chain ? BetweenHosts::kChain : BetweenHosts::kTree);
  const std::uint32_t step = Tree(group.size()).end_step();

  const std::size_t bytes = collectives::broadcast_piece(data.size());
  const std::size_t pieces = (data.size() + bytes - 1) / bytes;
  const auto piece = [&](std::size_t number) {
    const std::size_t begin = number * bytes;
    return data.subspan(begin, std::min(bytes, data.size() - begin));
  };
  std::deque<Message> incoming;
  std::deque<Message> outgoing;
  if (tree.parent()) {
    for (std::size_t number = 0; number < pieces; ++number) {
      const auto chunk = static_cast<std::uint32_t>(number);
      incoming.push_back(group.recv(*tree.parent(), step, piece(number), chunk));
    }
  }
  // This follows the posting of receives because the parent may leave the agreement first and send
  // at once.
  co_await collectives::agree(group, 0, chain ? Header::kOtherWay : std::uint16_t{0});
  for (std::size_t number = 0; number < pieces; ++number) {
    const auto chunk = static_cast<std::uint32_t>(number);
    if (tree.parent()) {
      Message& expected = incoming.front();
      const std::size_t received = co_await expected;
      incoming.pop_front();
      collectives::require_length(received, piece(number).size(), group, *tree.parent());
    }
    for (const std::uint32_t child : tree.children()) {
      outgoing.push_back(group.send_dealt(child, step, piece(number), chunk, 1, pieces));
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
  collective.failed = collectives::forget_paths;
  if (go_with_headers(bytes.size())) {
    collectives::take_host_only(collective, bytes.memory(),
                                "copies broadcasts of at most 16384 bytes");
  }
  collectives::take_moved(collective, bytes.memory());
  return collective;
}

}  // namespace gtopk
