// Sparse, algorithms: the building blocks of the list algorithms: a swap with a partner, the merge
// of a node, and the entries that nodes dropped. This module knows neither the tree nor the order
// of a walk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "src/collectives/fold.hpp"
#include "src/collectives/header.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/departure.hpp"
#include "src/gtopk/algorithms/list_plan.hpp"
#include "src/gtopk/merge/merge.hpp"
#include "src/gtopk/value/list.hpp"
#include "src/gtopk/wire/codec.hpp"
#include "src/transport/base/tag.hpp"

namespace gtopk::sparse {

/// The most lists of dropped entries: one for what rounding lost of the rank's own selection and,
/// for every node (the fold and the rounds), one for what rounding lost and one for what the node
/// dropped. A host's node replaces a round: where two ranks share a host, fewer hosts than ranks
/// fold and take part in rounds. The two trees of `gtopk-placed` do not have more levels either:
/// for m ranks and H hosts, both of them folding, log2 m + log2 H stays below log2 mH by one.
inline constexpr std::size_t kMostDropped = 1 + 2 * (1 + transport::TagBits::kSource);

class ListExchange final : private BufferSource {
 public:
  ListExchange(engine::GroupView& group, const ListPlan& plan, MergeScratch& scratch)
      : group_(group), plan_(plan), scratch_(scratch) {}

  [[nodiscard]] engine::GroupView& group() const { return group_; }
  [[nodiscard]] const ListPlan& plan() const { return plan_; }
  /// Whether lists may be long enough to keep a link busy.
  [[nodiscard]] bool long_lists() const {
    return plan_.codec->message_bytes(plan_.type, plan_.leaf, plan_.d) > kAcknowledgedBytes;
  }

  /// Makes a list of up to `capacity` entries to write; close it afterwards. A list that is not
  /// finite has no entries.
  [[nodiscard]] List make(std::size_t capacity) {
    return plan_.codec->make(plan_.type, capacity, *this);
  }
  void close(List& list, std::size_t count, bool finite) const;
  /// Closes this rank's selection, rounded as the wire does; this rank is responsible for the
  /// error.
  void close_selection(List& list, std::size_t count, bool finite);

  /// Sends `mine` and returns the partner's list, which covers `ranks` ranks. Throws
  /// Error{kMismatch} if no rank of this call could have sent it.
  engine::Task<List> swap(std::uint32_t partner, collectives::Steps steps, List mine,
                          std::uint64_t ranks);
  engine::Task<List> receive(std::uint32_t from, std::uint32_t step, std::uint64_t ranks);
  /// Completes when the list has been posted; the next message waits until the list has left the
  /// link.
  engine::Task<void> send(std::uint32_t to, std::uint32_t step, List list);
  /// Completes when the last send has left this rank, as far as can be known.
  engine::Task<void> departed();

  /// Merges two lists at the node above them, with the same bits in either order. `speaker`, the
  /// lowest rank below the node, is responsible for the entries that the node drops and for its
  /// rounding errors. Sums from which nothing is selected are not rounded either.
  [[nodiscard]] List merge(const List& left, const List& right, std::uint32_t speaker) {
    return merge(left, right, speaker, plan_.k);
  }
  /// Does the same for a node that keeps the first `keep` of its union or, with blocks, the first
  /// of each block.
  [[nodiscard]] List merge(const List& left, const List& right, std::uint32_t speaker,
                           std::uint64_t keep);

  /// Returns the whole, unrounded sum of two lists, for merging, or for sending if nodes do not
  /// select.
  [[nodiscard]] List unite(const List& left, const List& right);

  /// Returns a view of the entries with indices in [begin, end), for merging but not for sending.
  [[nodiscard]] List part(const List& list, std::uint64_t begin, std::uint64_t end) const;
  /// Returns a copy of the same entries, which can be sent.
  [[nodiscard]] List copied(const List& part);
  /// Returns the entries of two lists; all indices of `low` are below those of `high`.
  [[nodiscard]] List joined(const List& low, const List& high);

  /// Returns the first entries of each block; this rank is responsible for the others.
  [[nodiscard]] List cut(const List& list);
  /// Returns the entries with a larger key than `key` (value/selection_order.hpp) and the first
  /// `equals` of the entries with that key; this rank is responsible for the others.
  [[nodiscard]] List cut(const List& list, std::uint64_t key, std::uint64_t equals);

  /// The entries for which this rank is responsible, from the leaves to the root: partial sums and
  /// rounding errors.
  [[nodiscard]] std::span<const List> dropped() const {
    return std::span(dropped_).first(lists_dropped_);
  }

 private:
  std::span<std::byte> buffer(std::size_t bytes) override { return group_.buffer(bytes); }
  [[nodiscard]] std::span<std::byte> message_buffer(std::uint64_t ranks) {
    return group_.buffer(plan_.message_bytes(ranks) + bytes_of_counts(ranks));
  }
  /// Rounds a finite list before it is closed; puts the error back if this rank is responsible for
  /// it.
  [[nodiscard]] Rounded round(const List& list, std::size_t count, bool answers,
                              bool zeros_are_lost);

  /// The bytes for the counts of a list that covers that many ranks; 0 if lists have no counts.
  [[nodiscard]] std::size_t bytes_of_counts(std::uint64_t ranks) const;
  /// Adds up the counts of a list made of two others, if lists have counts.
  void add_up_counts(List& list, const List& left, const List& right);
  /// Returns a copy of the message of a list with counts, followed by the counts.
  [[nodiscard]] std::span<std::byte> with_counts(std::span<const std::byte> message,
                                                 const List& list);
  /// The number of received bytes that are not counts. Throws Damaged.
  [[nodiscard]] std::size_t before_counts(const collectives::Header& header,
                                          std::size_t received) const;
  /// Decodes the counts of a list. Throws Damaged.
  void read_counts(std::span<const std::byte> code, List& list);

  /// A list as bytes, with space for the header in front, and what the header says about them.
  struct Coded {
    std::span<std::byte> message;
    std::uint64_t count = 0;
    std::uint16_t flags = 0;
    std::size_t count_bytes = 0;
  };
  [[nodiscard]] Coded code(const List& list);
  /// Codes a list whose selections are known as itself or as the selections, whichever takes fewer
  /// bytes.
  [[nodiscard]] Coded code_shortest(const List& list);
  /// Reads the list in a message of these bytes. Throws Damaged.
  [[nodiscard]] List read(const collectives::Header& header, std::span<std::byte> message,
                          std::uint64_t ranks);
  /// Reads the selections in a message of these bytes and returns their sum. Throws Damaged.
  [[nodiscard]] List read_selections(const collectives::Header& header,
                                     std::span<std::byte> message, std::uint64_t ranks);
  /// Returns the sum of the lists of consecutive ranks, in the tree's order. Overwrites `lists`.
  [[nodiscard]] List sum_of(std::span<List> lists);
  /// Makes a list the only one of its selections; `message` has its bytes, behind those of a
  /// header.
  void keep_selection(List& list, std::span<std::byte> message);
  /// Gives the sum of two lists their selections, if these are known.
  void join_selections(List& sum, const List& left, const List& right);
  [[nodiscard]] std::span<CodedSelection> buffer_for_selections(std::size_t count) {
    const std::size_t bytes = count * sizeof(CodedSelection);
    return {reinterpret_cast<CodedSelection*>(buffer(bytes).data()), count};
  }

  void post(std::uint32_t to, std::uint32_t step, const List& list);
  /// Returns the entries of a list that `divide` keeps; this rank is responsible for the entries
  /// that it drops. `divide` is Merged operator()<Value, Index>(entries, memory to keep, memory to
  /// drop).
  template <class Divide>
  List cut_by(const List& list, Divide divide);
  /// Checks a message that has arrived (the first `received` bytes of `message`, and any other
  /// parts) and acknowledges it.
  engine::Task<List> open(std::span<std::byte> message, std::size_t received, std::uint32_t from,
                          std::uint32_t step, std::uint64_t ranks);

  /// Refuses a message: throws Error{kMismatch}.
  [[noreturn]] void refuse(std::uint32_t from, std::string_view why) const;

  engine::GroupView& group_;
  ListPlan plan_;
  MergeScratch& scratch_;
  std::optional<Departure> leaving_;
  std::array<List, kMostDropped> dropped_{};
  std::size_t lists_dropped_ = 0;
};

/// Runs a walk of one rank for each leaf of the tree, for any number of ranks; see
/// collectives/fold.hpp.
template <class Rounds>
engine::Task<List> walk_tree(ListExchange& exchange, List mine, Rounds rounds) {
  const collectives::Tree tree(exchange.group().size());
  engine::Task<List> walking = folded(exchange, tree, exchange.group().rank(), mine, rounds);
  const List result = co_await walking;
  co_return result;
}

}  // namespace gtopk::sparse
