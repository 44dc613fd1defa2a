#include "src/collectives/all_reduce.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "gtopk/collectives.hpp"
#include "src/collectives/by_hosts.hpp"
#include "src/collectives/direct.hpp"
#include "src/collectives/fold.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/memory.hpp"
#include "src/collectives/path_costs.hpp"
#include "src/collectives/reduction.hpp"
#include "src/collectives/tree.hpp"

namespace gtopk::collectives {
namespace {

using engine::GroupView;
using engine::Message;
using engine::Task;

/// Messages of a header and d values. Two of them alternate as the destination of merges. With d =
/// 0, this is only the ranks' agreement.
class ValueExchange {
 public:
  using Item = std::span<std::byte>;

  ValueExchange(GroupView& group, const void* data, std::uint64_t d, DataType type, ReduceOp op,
                std::uint32_t first_step, double factor, std::uint16_t flags, std::size_t capacity)
      : group_(group),
        first_step_(first_step),
        flags_(flags),
        d_(d),
        bytes_(d * size_of(type)),
        type_(type),
        op_(op),
        mine_(message()),
        sum_(bytes_ == 0 ? mine_ : message()),
        theirs_(group.buffer(kHeaderBytes + std::max(bytes_, capacity))) {
    if (bytes_ != 0) {
      std::memcpy(values(mine_), data, bytes_);
      if (op == ReduceOp::kPremulSum) {
        multiply(values(mine_), d, type, factor);
      }
    }
  }

  [[nodiscard]] Item mine() const { return mine_; }
  [[nodiscard]] static std::byte* values(Item message) { return message.data() + kHeaderBytes; }

  Task<Item> swap(std::uint32_t partner, Steps steps, Item mine, std::uint64_t /*ranks*/) {
    co_await departed();
    Message incoming = group_.recv(partner, first_step_ + steps.received, theirs_);
    leaving_.emplace(group_.send(partner, first_step_ + steps.sent, mine));
    const std::size_t received = co_await incoming;
    co_await check(received, partner);
    co_return theirs_;
  }

  Task<Item> receive(std::uint32_t from, std::uint32_t step, std::uint64_t /*ranks*/) {
    Message incoming = group_.recv(from, first_step_ + step, theirs_);
    const std::size_t received = co_await incoming;
    co_await check(received, from);
    co_return theirs_;
  }

  Task<void> send(std::uint32_t to, std::uint32_t step, Item item) {
    co_await departed();
    leaving_.emplace(group_.send(to, first_step_ + step, item));
  }

  /// left + right, in this order. Each merged message is sent once, and its send has drained before
  /// the merge after the next one overwrites it.
  Item merge(Item left, Item right, std::uint32_t /*speaker*/) {
    if (bytes_ != 0) {
      reduce(values(sum_), values(left), values(right), d_, type_, op_);
      std::swap(sum_, mine_);
    }
    return mine_;
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
  Item message() {
    const Item item = group_.buffer(kHeaderBytes + bytes_);
    write_header(item, group_, {.count = d_, .flags = flags_});
    return item;
  }

  Task<void> check(std::size_t received, std::uint32_t from) {
    Task<Header> reading = read_header(theirs_.first(received), group_, from);
    const Header header = co_await reading;
    require_payload(header, {.count = d_, .flags = flags_}, group_, from);
    require_length(received - kHeaderBytes, bytes_, group_, from);
  }

  GroupView& group_;
  std::uint32_t first_step_;
  std::uint16_t flags_;
  std::uint64_t d_;
  std::size_t bytes_;
  DataType type_;
  ReduceOp op_;
  Item mine_;
  Item sum_;
  Item theirs_;
  std::optional<Message> leaving_;
};

/// Sums along the tree: left + right at every node, the same on all ranks.
Task<ValueExchange::Item> rounds(ValueExchange& exchange, const Tree& tree, std::uint32_t rank,
                                 ValueExchange::Item mine) {
  for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
    const std::uint32_t partner = tree.partner(rank, round);
    const std::uint32_t step = Tree::round_step(round);
    Task<ValueExchange::Item> swapping = exchange.swap(partner, {step, step}, mine, 2U << round);
    const ValueExchange::Item theirs = co_await swapping;
    const bool left = tree.on_left(rank, round);
    mine = exchange.merge(left ? mine : theirs, left ? theirs : mine, 0);
  }
  co_return mine;
}

Task<void> recursive_doubling(GroupView& group, void* data, std::uint64_t d, DataType type,
                              ReduceOp op, std::uint32_t first_step, double factor,
                              std::uint16_t flags = 0, std::size_t capacity = 0) {
  ValueExchange exchange(group, data, d, type, op, first_step, factor, flags, capacity);
  const Tree tree(group.size());
  Task<ValueExchange::Item> walking = folded(exchange, tree, group.rank(), exchange.mine(), rounds);
  const ValueExchange::Item result = co_await walking;
  co_await exchange.departed();
  const std::size_t bytes = d * size_of(type);
  if (bytes != 0) {
    std::memcpy(data, ValueExchange::values(result), bytes);
  }
}

}  // namespace

Task<void> agree(GroupView& group, std::uint32_t first_step, std::uint16_t flags,
                 std::size_t capacity) {
  return recursive_doubling(group, nullptr, 0, DataType::kUint8, ReduceOp::kSum, first_step, 1,
                            flags, capacity);
}

Task<void> reduce_over_ranks(GroupView& group, void* data, std::uint64_t d, DataType type,
                             ReduceOp op, std::uint32_t first_step, double factor) {
  if (d * size_of(type) <= kRecursiveDoublingBytes) {
    co_await recursive_doubling(group, data, d, type, op, first_step, factor);
  } else {
    co_await agree(group, first_step);
    if (op == ReduceOp::kPremulSum) {
      multiply(data, d, type, factor);
    }
    if (group.size() > 1) {
      co_await all_reduce_by_hosts(group, data, d, type, op,
                                   first_step + Tree(group.size()).end_step());
    }
  }
  if (op == ReduceOp::kAvg) {
    divide(data, d, type, group.size());
  }
}

Task<void> reduce_by_the_quicker_path(GroupView& group, void* data, std::uint64_t d, DataType type,
                                      ReduceOp op, double factor) {
  const std::size_t bytes = d * size_of(type);
  PathChoice choice(group);
  // Along the tree, two ranks send each other the same bytes in fewer messages.
  if (bytes <= kRecursiveDoublingBytes && group.size() > 2) {
    Task<bool> choosing = choice.directly(&DensePaths::reduce_directly, bytes);
    const bool directly = co_await choosing;
    if (directly) {
      co_await reduce_directly(group, data, d, type, op, factor);
      if (op == ReduceOp::kAvg) {
        divide(data, d, type, group.size());
      }
      co_return;
    }
  }
  co_await reduce_over_ranks(group, data, d, type, op, 0, factor);
}

}  // namespace gtopk::collectives

namespace gtopk {

Collective all_reduce(Buffer data, ReduceOp op, double factor) {
  collectives::check_reduction(data.dtype, op, factor);
  Collective collective;
  collective.name = "all_reduce";
  collective.agreement = Agreement("all_reduce")
                             .number("d", data.count)
                             .type("dtype", data.dtype)
                             .word("op", to_string(op));
  collective.body = [=](engine::GroupView& group) {
    return collectives::reduce_by_the_quicker_path(group, data.data, data.count, data.dtype, op,
                                                   factor);
  };
  collective.failed = collectives::forget_paths;
  collectives::take_host_only(collective, data.memory);
  return collective;
}

namespace {

/// Makes a barrier. `name` must have static storage, like a literal.
Collective barrier_called(std::string_view name) {
  Collective collective;
  collective.name = name;
  collective.agreement = Agreement(name);
  collective.ordering = Ordering::kAfterEarlier;
  collective.body = [](engine::GroupView& group) { return collectives::agree(group); };
  return collective;
}

}  // namespace

Collective barrier() { return barrier_called("barrier"); }

Collective monitored_barrier() { return barrier_called("monitored_barrier"); }

}  // namespace gtopk
