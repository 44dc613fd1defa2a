/// @file
/// The predicted cost of a sparse all-reduce with each algorithm, and which one `auto` picks.
/// docs/algorithms.md has the model.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace gtopk {

/// The costs of a message between two ranks, in nanoseconds.
struct LinkCosts {
  double message = 0;  ///< alpha: the one-way time of an empty message
  double byte = 0;     ///< beta: per byte
};

/// Costs in a job, in nanoseconds: messages on its links, arithmetic on its slowest rank.
struct Costs {
  /// Costs between ranks of one host; zero if no host has two ranks.
  LinkCosts within{};
  /// Costs between ranks of different hosts, with one rank per host sending at a time; zero if
  /// there is one host.
  LinkCosts between{};
  double select = 0;  ///< selecting, per element of the tensor
  double pick = 0;    ///< selecting, per entry selected
  double code = 0;    ///< encoding or decoding, per entry of a list
  double merge = 0;   ///< merging with re-selection, per entry of both lists
  double unite = 0;   ///< merging without re-selection, per entry of both lists
  double copy = 0;    ///< copying an entry from list to list
  double add = 0;     ///< dense summation, per element
  double commit = 0;  ///< writing tensor and residual, per element
  double apply = 0;   ///< writing, per entry sent, delivered or put back
  double gather = 0;  ///< gradient + residual for `dense`, per element
  double settle = 0;  ///< writing tensor and residual for `dense`, per element
};

/// A cost of arithmetic, and its name.
struct NamedCost {
  const char* name;     ///< the name that `plan()` prints
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
  std::string algorithm;  ///< the algorithm's name
  double seconds = 0;     ///< duration of the call
  /// Messages on the critical path.
  std::uint64_t messages = 0;
  /// Bytes of these messages, headers included.
  double bytes = 0;
  /// Bytes on the busiest host's link during the call, for all its ranks.
  double host_bytes = 0;
};

/// What was chosen and why.
struct PlanReport {
  std::string algorithm;  ///< the chosen algorithm
  std::string reason;     ///< why, in words
  /// One prediction per algorithm considered, in registry order.
  std::vector<Prediction> predictions;
  /// The costs on which the predictions are based.
  Costs costs;
  /// The number of the collective that measured the costs.
  std::uint64_t measured_by = 0;
  /// The call's duration on this rank, from the choice to its end; 0 if it has not run.
  double actual_seconds = 0;
};

}  // namespace gtopk
