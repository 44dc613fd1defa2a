// Sparse, algorithms: `dense` and `dense-placed` on a wire that codes blocks of values. In
// `dense`, each rank owns a region of the vector:
//
//   1. it codes acc, region by region, and sends each region's code to its owner;
//   2. it adds up what the ranks sent of its own region, in rank order, codes the sum, and sends
//      that code to all;
//   3. every rank decodes the same sums. The error of coding acc stays in the residual of the rank
//      that coded it, and the error of coding a sum stays in its owner's.
//
// In `dense-placed`, the lowest rank of each host does this for the host. Before, it adds up the
// accs of its host's ranks in rank order; afterwards it passes the codes of the sums on to them.
// The coding errors stay with it.
//
// In round s an owner sends to owner + s and receives from owner - s, so no two send to the same
// owner. A long message waits until the previous one has arrived, so each link carries one at a
// time.
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/reduction.hpp"
#include "src/collectives/tree.hpp"
#include "src/engine/host_map.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/call_types.hpp"
#include "src/gtopk/algorithms/coded_sums.hpp"
#include "src/gtopk/algorithms/dense.hpp"
#include "src/gtopk/algorithms/departure.hpp"
#include "src/gtopk/algorithms/gather.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {
namespace {

using engine::Computation;
using engine::GroupView;
using engine::Message;
using engine::Task;
using Code = std::span<std::byte>;

/// The ranks that own a region, numbered in ascending order.
class Owners {
 public:
  /// Makes owners of all ranks, or of the lowest rank of each host.
  Owners(const GroupView& group, bool one_of_each_host)
      : hosts_(one_of_each_host ? &group.hosts() : nullptr),
        count_(hosts_ == nullptr ? group.size() : hosts_->hosts()),
        own_(group.rank()) {
    if (hosts_ != nullptr) {
      const std::uint32_t host = hosts_->host_of(group.rank());
      own_ = hosts_->leader(host) == group.rank() ? host : count_;
    }
  }

  [[nodiscard]] std::uint32_t count() const { return count_; }
  /// This rank's number; count() if it owns none.
  [[nodiscard]] std::uint32_t own() const { return own_; }
  [[nodiscard]] bool owns() const { return own_ < count_; }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t number) const {
    return hosts_ == nullptr ? number : hosts_->leader(number);
  }

 private:
  const engine::HostMap* hosts_;
  std::uint32_t count_;
  std::uint32_t own_;
};

/// The codes that an owner sends and receives in a step, one for each other owner. No code is empty
/// on only one side. The constructor posts the receives.
class Swap {
 public:
  /// sent(to) and received(from) return the codes, by the owners' numbers.
  template <class Sent, class Received>
  Swap(GroupView& group, const Owners& owners, std::uint32_t step, Sent sent, Received received)
      : group_(group), step_(step) {
    const std::uint32_t count = owners.owns() ? owners.count() : 1;
    for (std::uint32_t round = 1; round < count; ++round) {
      const std::uint32_t to = (owners.own() + round) % count;
      const std::uint32_t from = (owners.own() + count - round) % count;
      rounds_.push_back({owners.rank_of(to), owners.rank_of(from), sent(to), received(from), {}});
      Round& latest = rounds_.back();
      if (!latest.received.empty()) {
        latest.incoming.emplace(group.recv(latest.from, step, latest.received));
      }
    }
  }

  /// Sends short codes all at once, and each long one after the previous one has arrived.
  /// meanwhile(i), if not null, is a computation to run while long code i - 1 is on its way.
  Task<void> run(bool paced, const std::function<Computation(std::size_t)>& meanwhile) {
    if (!paced) {
      for (const Round& round : rounds_) {
        send(round);
      }
    }
    for (std::size_t i = 0; i < rounds_.size(); ++i) {
      Round& round = rounds_[i];
      std::optional<Departure> leaving;
      if (paced && !round.sent.empty()) {
        leaving.emplace(group_, round.to, step_, round.sent,
                        parts_of(round.sent.size(), group_.connections(round.to)));
      }
      if (paced && meanwhile) {
        Computation computing = meanwhile(i + 1);
        co_await computing;
      }
      if (round.incoming) {
        Message& incoming = *round.incoming;
        const std::size_t first = co_await incoming;
        Task<std::size_t> receiving = rest_of(round, first);
        const std::size_t bytes = co_await receiving;
        collectives::require_length(bytes, round.received.size(), group_, round.from);
        Departure::acknowledge(group_, round.from, step_, bytes);
      }
      if (leaving) {
        co_await leaving->over();
      }
    }
  }

 private:
  struct Round {
    std::uint32_t to = 0;
    std::uint32_t from = 0;
    Code sent;
    Code received;
    std::optional<Message> incoming;
  };

  /// Receives the other parts of a code. A code in several parts does not say how many there are,
  /// because its length is known.
  Task<std::size_t> rest_of(const Round& round, std::size_t first) {
    const std::size_t whole = round.received.size();
    const std::size_t parts = first == 0 ? 1 : (whole + first - 1) / first;
    if (parts <= 1 || parts > kMostParts || part_bytes(whole, parts) != first) {
      co_return first;
    }
    Task<std::size_t> receiving = Departure::receive_rest(group_, round.from, step_, round.received,
                                                          first, static_cast<std::uint32_t>(parts));
    co_return co_await receiving;
  }

  void send(const Round& round) {
    if (!round.sent.empty()) {
      const Message outgoing = group_.send(round.to, step_, round.sent);
    }
  }

  GroupView& group_;
  std::uint32_t step_;
  std::vector<Round> rounds_;
};

/// Memory for a call's codes; a rank that owns no region needs only memory for the sums.
CodedSums codes_of(GroupView& group, const SparseCall& call, const BlockCoder& coder,
                   const Owners& owners) {
  const DataType value = accumulation_type(call.dtype);
  const CodedRegions regions(coder, value, call.d, owners.count());
  CodedSums codes{.regions = regions,
                  .own_region = owners.own(),
                  .ranks = group.size(),
                  .others = group.buffer(owners.count() * regions.most_bytes())};
  if (owners.owns()) {
    codes.own = group.buffer(regions.bytes_of(static_cast<std::size_t>(call.d)));
    codes.sums = group.buffer(regions.size(owners.own()) * size_of(value));
  }
  return codes;
}

/// Codes the region of the `round`-th other owner or, after all others, this rank's own region.
Computation code_round(GroupView& group, const SparseCall& call, const CodedSums& codes,
                       std::size_t round) {
  const auto region =
      static_cast<std::uint32_t>((codes.own_region + round + 1) % codes.regions.ranks());
  return group.compute(codes.regions.size(region),
                       [&call, &codes, region] { code_acc(call, codes, region); });
}

/// Codes all rounds or, if codes are paced, only the first one. Each later round is then coded
/// while the previous one is on its way.
Task<void> code_first(GroupView& group, const SparseCall& call, const CodedSums& codes,
                      bool paced) {
  for (std::size_t round = 0; round < (paced ? 1 : codes.regions.ranks()); ++round) {
    Computation coding = code_round(group, call, codes, round);
    co_await coding;
  }
}

Swap contributions_of(GroupView& group, const CodedSums& codes, const Owners& owners) {
  return {group, owners, collectives::Tree(group.size()).end_step(),
          [&](std::uint32_t to) { return codes.own_code(to); },
          [&](std::uint32_t from) { return codes.contribution(from); }};
}

/// Runs the exchange once the ranks have agreed and the first codes are ready.
Task<void> exchange(GroupView& group, const SparseCall& call, const CodedSums& codes,
                    const Owners& owners, Swap& contributions, engine::Turn* turn) {
  const bool paced = turn != nullptr;
  if (paced) {
    engine::Turn& mine = *turn;
    co_await mine;
  }
  const std::function<Computation(std::size_t)> code_next = [&](std::size_t round) {
    return code_round(group, call, codes, round);
  };
  co_await contributions.run(paced, code_next);
  Computation summing =
      group.compute(codes.regions.size(codes.own_region), [&] { code_sum(call, codes); });
  co_await summing;
  // An owner's contribution has been added, so its sum may overwrite it.
  const Code own = codes.sum_code(codes.own_region);
  Swap sums(
      group, owners, collectives::Tree(group.size()).end_step() + 1,
      [&](std::uint32_t /*to*/) { return own; },
      [&](std::uint32_t from) { return codes.sum_code(from); });
  const std::function<Computation(std::size_t)> nothing;
  co_await sums.run(paced, nothing);
}

/// Commits the sums. Every rank has the same sums, with NaN where anything was not finite.
Task<void> settle_sums(GroupView& group, const SparseCall& call, const CodedSums& codes) {
  const auto decide = [&] { return sums_are_finite(call, codes); };
  const auto finish = [&](bool happened) {
    if (happened) {
      commit_sums(call, codes);
    } else {
      visit_floating(call.dtype, [&]<class T>() {
        fill_nan(Segments<T>(call.tensor), static_cast<std::size_t>(call.d));
      });
    }
  };
  Task<void> settling = settle(group, call.gate.get(), call.d, std::ref(decide), std::ref(finish));
  co_await settling;
}

/// Takes a place in line if codes are so long that they are paced, which is the same on every rank.
void take_turn(GroupView& group, const CodedSums& codes, std::unique_ptr<engine::Turn>& turn) {
  const bool owns = codes.own_region < codes.regions.ranks();
  if (codes.regions.ranks() == 1 || !owns || codes.regions.most_bytes() <= kAcknowledgedBytes) {
    turn.reset();
  } else if (turn == nullptr) {
    turn = std::make_unique<engine::Turn>(group);
  }
}

/// The exchange between the ranks of a host and its lowest rank, which owns a region.
class WithinHost {
 public:
  WithinHost(GroupView& group, const SparseCall& call)
      : group_(group),
        call_(call),
        leader_(group.hosts().leader(group.hosts().host_of(group.rank()))),
        others_(group.hosts().ranks_of(group.hosts().host_of(group.rank())).subspan(1)),
        first_step_(collectives::Tree(group.size()).end_step() + 2) {}

  /// Adds up the host's accs in rank order, on its lowest rank, in place.
  Task<void> sum(std::span<std::byte> acc) {
    if (group_.rank() != leader_) {
      Message leaving = group_.send(leader_, first_step_, acc);
      co_await leaving;
      co_return;
    }
    const DataType value = accumulation_type(call_.dtype);
    const std::span<std::byte> theirs = others_.empty() ? acc : group_.buffer(acc.size());
    for (const std::uint32_t other : others_) {
      Message incoming = group_.recv(other, first_step_, theirs);
      const std::size_t bytes = co_await incoming;
      collectives::require_length(bytes, acc.size(), group_, other);
      Computation adding = group_.compute(static_cast<std::size_t>(call_.d), [&] {
        collectives::reduce(acc.data(), acc.data(), theirs.data(),
                            static_cast<std::size_t>(call_.d), value, ReduceOp::kSum);
      });
      co_await adding;
    }
  }

  /// Passes the codes of the sums on from the host's lowest rank.
  Task<void> spread(const CodedSums& codes) {
    std::vector<Message> messages;
    for (std::uint32_t region = 0; region < codes.regions.ranks(); ++region) {
      const Code code = codes.sum_code(region);
      if (code.empty()) {
        continue;
      }
      if (group_.rank() != leader_) {
        messages.push_back(group_.recv(leader_, first_step_ + 1, code, region));
        continue;
      }
      for (const std::uint32_t other : others_) {
        messages.push_back(group_.send(other, first_step_ + 1, code, region));
      }
    }
    for (Message& message : messages) {
      co_await message;
    }
  }

 private:
  GroupView& group_;
  const SparseCall& call_;
  std::uint32_t leader_;
  std::span<const std::uint32_t> others_;
  std::uint32_t first_step_;
};

}  // namespace

Task<void> dense_coded(GroupView& group, SparseCall call, const BlockCoder& coder,
                       std::unique_ptr<engine::Turn> turn) {
  const Owners owners(group, false);
  const CodedSums codes = codes_of(group, call, coder, owners);
  take_turn(group, codes, turn);
  group.enter("compress");
  co_await code_first(group, call, codes, turn != nullptr);

  group.enter("exchange");
  Swap contributions = contributions_of(group, codes, owners);
  co_await collectives::agree(group);
  co_await exchange(group, call, codes, owners, contributions, turn.get());
  turn.reset();
  co_await settle_sums(group, call, codes);
}

Task<void> dense_placed_coded(GroupView& group, SparseCall call, const BlockCoder& coder,
                              std::unique_ptr<engine::Turn> turn) {
  const Owners owners(group, true);
  if (owners.count() == group.size()) {
    Task<void> alone = dense_coded(group, call, coder, std::move(turn));
    co_await alone;
    co_return;
  }
  CodedSums codes = codes_of(group, call, coder, owners);
  take_turn(group, codes, turn);
  WithinHost within(group, call);
  group.enter("compress");
  Task<void*> accumulating = accumulate_all(group, call);
  codes.host_acc = co_await accumulating;

  group.enter("exchange");
  Swap contributions = contributions_of(group, codes, owners);
  co_await collectives::agree(group);
  const std::size_t bytes =
      static_cast<std::size_t>(call.d) * size_of(accumulation_type(call.dtype));
  Task<void> adding = within.sum({static_cast<std::byte*>(codes.host_acc), bytes});
  co_await adding;
  if (owners.owns()) {
    co_await code_first(group, call, codes, turn != nullptr);
    co_await exchange(group, call, codes, owners, contributions, turn.get());
  }
  turn.reset();
  co_await within.spread(codes);
  co_await settle_sums(group, call, codes);
}

}  // namespace gtopk::sparse
