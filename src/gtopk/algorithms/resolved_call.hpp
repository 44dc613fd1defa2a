// Sparse, algorithms: what follows from the arguments of a call: rows of the registries, sizes of
// lists, the arguments on which all ranks must agree, and the capacity for the result. These are
// pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "gtopk/collective.hpp"
#include "src/gtopk/algorithms/algorithm.hpp"
#include "src/gtopk/select/selector.hpp"

namespace gtopk::sparse {

/// What follows from a call's arguments alone, the same on every rank that makes the same call.
struct ResolvedCall {
  const AlgorithmRow* algorithm = nullptr;
  const SelectorRow* selector = nullptr;
  const CodecRow* codec = nullptr;
  ListPlan lists;

  /// The coder of values for an algorithm that sends them without indices; null if they are not
  /// coded.
  [[nodiscard]] const BlockCoder* coder() const {
    return algorithm->coded == nullptr ? nullptr : codec->codec.blocks();
  }
  /// Whether the result satisfies these semantics.
  [[nodiscard]] bool satisfies(Semantics semantics) const {
    return coder() == nullptr ? algorithm->keeps <= semantics
                              : semantics == Semantics::kDense || semantics == Semantics::kAny;
  }
  /// Whether each block of a rank's selection has its own k.
  [[nodiscard]] bool selects_per_block() const {
    return algorithm->selects() && selector->per_block;
  }
  /// The most entries of the result among this many ranks. If there is only one rank, its selection
  /// is the result.
  [[nodiscard]] std::uint64_t most_entries(std::uint32_t ranks) const {
    if (!algorithm->bounded) {
      return lists.entries_of(ranks);
    }
    return ranks == 1 ? lists.leaf : lists.k;
  }
};

/// Resolves a call. Throws Error{kInvalidArgument} for an invalid call.
[[nodiscard]] ResolvedCall resolve(const SparseCall& call);
/// The arguments on which all ranks must agree. `algorithm` is the name in the call.
[[nodiscard]] Agreement agreement(const SparseCall& call, const ResolvedCall& resolved,
                                  std::string_view algorithm);
[[nodiscard]] inline Agreement agreement(const SparseCall& call, const ResolvedCall& resolved) {
  return agreement(call, resolved, resolved.algorithm->name);
}

/// Returns a check that throws Error{kInvalidArgument} if there is too little capacity to record
/// the result.
[[nodiscard]] std::function<void(const GroupShape&)> check_of_capacity(const ResolvedCall& resolved,
                                                                       const Delivered& delivered);

}  // namespace gtopk::sparse
