// Reference: the sparse all-reduce as its contract words it (docs/algorithms.md), one rank after
// the other, with maps and sorts. It is what every implementation must equal bit for bit, in tests
// and under `gtopk-allreduce --check`, so it shares no code with the rest of src/.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gtopk/types.hpp"
#include "tests/reference/number.hpp"

namespace gtopk::reference {

/// dense sums by the tree when acc has at most so many bytes, else by the ring.
inline constexpr std::uint64_t kDenseTreeBytes = 65536;

/// What one rank brings.
struct Input {
  Bytes gradient;                 ///< d elements of the problem's type
  std::optional<Bytes> residual;  ///< d elements of accumulation_type; none is zeros, discarded
  SelectorState state{};          ///< what the last step left
};

struct Problem {
  DataType type = DataType::kFloat32;
  std::uint64_t d = 0;
  SparseOptions options;
  std::vector<Input> ranks;
  /// Of the call in its group: what `random-k` draws from where options.seed is none.
  std::uint64_t number = 1;
  /// The name of each rank's host; none: support::usual_hosts().
  std::vector<std::string> hosts{};
};

/// k indices below d, those that `random-k` draws from a seed.
[[nodiscard]] std::vector<std::uint64_t> drawn_indices(std::uint64_t seed, std::uint64_t d,
                                                       std::uint64_t k);

/// Number i = 1, 2, ... of those that a seed gives.
[[nodiscard]] std::uint64_t drawn_number(std::uint64_t seed, std::uint64_t i);

/// What `sketch` sums over the ranks, as numbers of values.
struct SketchShape {
  static constexpr std::uint64_t kRows = 5;

  SketchShape(std::uint64_t d, std::uint64_t k)
      : columns(10 * k), second(8 * k), dense(kRows * columns + second >= d) {}
  [[nodiscard]] std::uint64_t cells() const { return kRows * columns; }

  std::uint64_t columns;
  std::uint64_t second;  ///< exact values, in the second round
  bool dense;            ///< in the place of both, acc
};

/// The lists that one rank sends and receives, as numbers of entries, in the order of its rounds.
/// Empty for algorithms that send none, like `dense`, and for a step that did not happen.
struct Lists {
  std::vector<std::uint64_t> sent;
  std::vector<std::uint64_t> received;
  /// Of each of them, the bytes that say how many ranks are in its entries.
  std::vector<std::uint64_t> counts_sent;
  std::vector<std::uint64_t> counts_received;
  /// Beside them, as many from every partner as go to it: messages that leaves agree by, as numbers
  /// of 64-bit words.
  std::vector<std::uint64_t> words;
};

struct Outcome {
  bool happened = true;                         ///< false: something was not finite
  Bytes tensor;                                 ///< the same on every rank
  std::vector<std::optional<Bytes>> residuals;  ///< by rank, none where none came in
  /// F and its sums before division and rounding. Of `dense`: every index.
  std::map<std::uint64_t, double> delivered;
  std::vector<SelectorState> states;    ///< by rank, what this step left
  std::vector<std::uint64_t> selected;  ///< by rank, |S_r|
  std::vector<Lists> lists;             ///< by rank
};

[[nodiscard]] Outcome all_reduce(const Problem& problem);

/// acc of one rank: gradient + residual, in accumulation_type.
[[nodiscard]] Bytes accumulated(const Problem& problem, std::uint32_t rank);

}  // namespace gtopk::reference
