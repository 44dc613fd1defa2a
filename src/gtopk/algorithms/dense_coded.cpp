// Sparse, algorithms room: `dense` on a wire that codes blocks of values. Each rank owns a region
// of the vector:
//
//   1. it codes acc, region by region, and sends each region's code to its owner;
//   2. it adds up what the ranks sent of its own region, in rank order, codes the sum, and sends
//      that code to all;
//   3. every rank decodes the same sums. What coding lost of acc stays in the residual of the rank
//      that coded it, and what it lost of a sum in the owner's.
//
// In round s a rank sends to rank + s and receives from rank - s, so no two ranks send to the same
// one. Long messages wait until the previous one has arrived: one at a time on each link.
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/tree.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/algorithms/call_types.hpp"
#include "src/gtopk/algorithms/coded_sums.hpp"
#include "src/gtopk/algorithms/dense.hpp"
#include "src/gtopk/algorithms/departure.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::sparse {
namespace {

using engine::Computation;
using engine::GroupView;
using engine::Message;
using engine::Task;
using Code = std::span<std::byte>;

/// The codes that one rank sends and receives in a step, one for each other rank; none is empty on
/// only one side. Receives are posted by the constructor.
class Swap {
 public:
  /// sent(to) and received(from) are the codes.
  template <class Sent, class Received>
  Swap(GroupView& group, std::uint32_t step, Sent sent, Received received)
      : group_(group), step_(step) {
    const std::uint32_t ranks = group.size();
    for (std::uint32_t round = 1; round < ranks; ++round) {
      const std::uint32_t to = (group.rank() + round) % ranks;
      const std::uint32_t from = (group.rank() + ranks - round) % ranks;
      rounds_.push_back({to, from, sent(to), received(from), {}});
      if (!rounds_.back().received.empty()) {
        rounds_.back().incoming.emplace(group.recv(from, step, rounds_.back().received));
      }
    }
  }

  /// Sends short codes all at once, and each long one after the previous one has arrived.
  /// meanwhile(i), or null: computation to do while long code i - 1 is on its way.
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
        Task<void> departing = leaving->over();
        co_await departing;
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

  /// A code in several parts does not say how many there are, as its length is known.
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

CodedSums codes_of(GroupView& group, const SparseCall& call, const BlockCoder& coder) {
  const DataType value = accumulation_type(call.dtype);
  const CodedRegions regions(coder, value, call.d, group.size());
  return {.regions = regions,
          .rank = group.rank(),
          .own = group.buffer(regions.bytes_of(static_cast<std::size_t>(call.d))),
          .others = group.buffer(group.size() * regions.most_bytes()),
          .sums = group.buffer(regions.size(group.rank()) * size_of(value))};
}

/// Codes what goes to the `round`-th other rank or, after all of these, this rank's own region.
Computation code_round(GroupView& group, const SparseCall& call, const CodedSums& codes,
                       std::size_t round) {
  const auto region = static_cast<std::uint32_t>((group.rank() + round + 1) % group.size());
  return group.compute(codes.regions.size(region),
                       [&call, &codes, region] { code_acc(call, codes, region); });
}

Task<void> exchange(GroupView& group, const SparseCall& call, const CodedSums& codes,
                    engine::Turn* turn) {
  const std::uint32_t first_step = collectives::Tree(group.size()).end_step();
  const bool paced = turn != nullptr;
  Swap contributions(
      group, first_step, [&](std::uint32_t to) { return codes.own_code(to); },
      [&](std::uint32_t from) { return codes.contribution(from); });
  Task<void> agreeing = collectives::agree(group);
  co_await agreeing;
  if (paced) {
    engine::Turn& mine = *turn;
    co_await mine;
  }
  const std::function<Computation(std::size_t)> code_next = [&](std::size_t round) {
    return code_round(group, call, codes, round);
  };
  Task<void> contributing = contributions.run(paced, code_next);
  co_await contributing;
  Computation summing =
      group.compute(codes.regions.size(group.rank()), [&] { code_sum(call, codes); });
  co_await summing;
  // A rank's contribution has been added, so its sum may overwrite it.
  const Code own = codes.sum_code(group.rank());
  Swap sums(
      group, first_step + 1, [&](std::uint32_t /*to*/) { return own; },
      [&](std::uint32_t from) { return codes.sum_code(from); });
  const std::function<Computation(std::size_t)> nothing;
  Task<void> spreading = sums.run(paced, nothing);
  co_await spreading;
}

}  // namespace

Task<void> dense_coded(GroupView& group, SparseCall call, const BlockCoder& coder,
                       std::unique_ptr<engine::Turn> turn) {
  const CodedSums codes = codes_of(group, call, coder);
  if (group.size() == 1 || codes.regions.most_bytes() <= kAcknowledgedBytes) {
    turn.reset();
  } else if (turn == nullptr) {
    turn = std::make_unique<engine::Turn>(group);
  }
  group.enter("compress");
  // If codes are paced, only the first: the others are coded while the previous one is on its way.
  for (std::size_t round = 0; round < (turn ? 1 : group.size()); ++round) {
    Computation coding = code_round(group, call, codes, round);
    co_await coding;
  }

  group.enter("exchange");
  Task<void> exchanging = exchange(group, call, codes, turn.get());
  co_await exchanging;
  turn.reset();

  // Every rank has the same sums: a NaN where anything was not finite.
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

}  // namespace gtopk::sparse
