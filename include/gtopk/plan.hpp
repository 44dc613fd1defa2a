/// @file
/// The predicted cost of a sparse all-reduce with each algorithm, and which one `auto` picks.
/// docs/algorithms.md has the model.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace gtopk {

/// The cost of a message between two ranks, in nanoseconds.
struct LinkCosts {
  double message = 0;  ///< alpha: an empty message, one way, until its receiver continues
  double byte = 0;     ///< beta: per byte
};

/// Costs in a job, in nanoseconds: messages on its links, arithmetic on its slowest rank.
struct Costs {
  /// Between ranks of one host; zero if no host has two.
  LinkCosts within{};
  /// Between ranks of different hosts, one rank per host at a time; zero if there is one host.
  LinkCosts between{};
  double select = 0;  ///< selecting, for each element of the tensor
  double pick = 0;    ///< and for each entry selected
  double code = 0;    ///< encoding or decoding, for each entry of a list
  double merge = 0;   ///< merging with re-selection, for each entry of the two lists
  double unite = 0;   ///< merging without it
  double copy = 0;    ///< copying an entry from list to list
  double add = 0;     ///< summing densely, for each element
  double commit = 0;  ///< writing tensor and residual, for each element
  double apply = 0;   ///< and for each entry sent, delivered or put back
  double gather = 0;  ///< gradient + residual for `dense`, for each element
  double settle = 0;  ///< writing tensor and residual for `dense`, for each element
};

/// A cost of arithmetic, and its name in `plan()`.
struct NamedCost {
  const char* name;     ///< in `plan()`
  double Costs::*cost;  ///< the member that holds it
};
/// All costs of arithmetic, in the order of Costs.
inline constexpr std::array kArithmeticCosts = {
    NamedCost{"select", &Costs::select}, NamedCost{"pick", &Costs::pick},
    NamedCost{"code", &Costs::code},     NamedCost{"merge", &Costs::merge},
    NamedCost{"unite", &Costs::unite},   NamedCost{"copy", &Costs::copy},
    NamedCost{"add", &Costs::add},       NamedCost{"commit", &Costs::commit},
    NamedCost{"apply", &Costs::apply},   NamedCost{"gather", &Costs::gather},
    NamedCost{"settle", &Costs::settle}};

/// The predicted cost of one call with one algorithm.
struct Prediction {
  std::string algorithm;  ///< its name
  double seconds = 0;     ///< from the call to its end
  /// Messages on the critical path.
  std::uint64_t messages = 0;
  /// Bytes of these messages, headers included.
  double bytes = 0;
  /// Bytes on the busiest host's link during the call, for all its ranks.
  double host_bytes = 0;
};

/// What was chosen and why.
struct PlanReport {
  std::string algorithm;  ///< the one chosen
  std::string reason;     ///< why, in words
  /// One for each algorithm considered, in registry order.
  std::vector<Prediction> predictions;
  /// The costs that the predictions follow from.
  Costs costs;
  /// The number of the group's collective that measured the costs.
  std::uint64_t measured_by = 0;
  /// The call's duration on this rank, from the choice to its end; 0 if it has not run.
  double actual_seconds = 0;
};

}  // namespace gtopk
