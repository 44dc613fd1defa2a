// Sparse, algorithms: an algorithm of the sparse all-reduce as a row of the registry. An algorithm
// that merges lists defines the walk from a rank's selection to the result; an algorithm that works
// on acc itself defines the whole call. A new algorithm is a file and a row of registry.cpp.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>

#include "gtopk/device_acc.hpp"
#include "gtopk/types.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/task.hpp"
#include "src/gtopk/algorithms/critical_path.hpp"
#include "src/gtopk/algorithms/list_exchange.hpp"
#include "src/gtopk/algorithms/step_gate.hpp"
#include "src/gtopk/value/list.hpp"
#include "src/gtopk/value/registry.hpp"
#include "src/gtopk/value/segments.hpp"

namespace gtopk::sparse {

/// Stands for the algorithm that is cheapest when the call runs. It is not a row of the registry.
inline constexpr std::string_view kAuto = "auto";

/// One rank's call. Pointers must stay valid until the operation is destroyed.
struct SparseCall {
  /// d elements of dtype, in one or several pieces: the gradient, then the result, which is zero
  /// where nothing was delivered.
  Segments<void> tensor;
  /// d elements of accumulation_type(dtype), or null, which means zeros that are discarded
  /// afterwards.
  void* residual = nullptr;
  std::uint64_t d = 0;
  DataType dtype = DataType::kFloat32;
  SparseOptions options;
  Delivered delivered;
  /// The call's place at options.gate, if there is a gate.
  std::shared_ptr<StepGate> gate = nullptr;
  /// Set for a `whole` algorithm on a device. Tensor and residual are then on the device, and null
  /// here.
  std::optional<AccOnDevice> device = std::nullopt;

  /// The entry type of its lists and its result.
  [[nodiscard]] EntryType entry_type() const {
    const bool wide = d > std::numeric_limits<std::uint32_t>::max();
    return {accumulation_type(dtype), wide ? 8U : 4U};
  }
};

struct AlgorithmRow {
  /// Turns this rank's selection into the result, with the same bits on every rank.
  using Walk = engine::Task<List> (*)(ListExchange& exchange, List mine);
  /// Does everything from reading gradient and residual to writing both; options.k is set even if a
  /// density was given.
  using Whole = engine::Task<void> (*)(engine::GroupView& group, SparseCall call);
  /// Does the same with values coded on the wire. `turn` is the operation's place in line if it
  /// already has one, or null.
  using Coded = engine::Task<void> (*)(engine::GroupView& group, SparseCall call,
                                       const BlockCoder& coder, std::unique_ptr<engine::Turn> turn);
  /// Returns the capacity that `whole` needs from a device, for d >= 1 and 1 <= k <= d; index_bytes
  /// is ignored.
  using OnDevice = AccCapacity (*)(std::uint64_t d, std::uint64_t k);
  /// Describes the critical path of a call. It is a pure function.
  using Cost = void (*)(CriticalPath& path);

  std::string_view name;
  std::string_view description;
  /// Whether a node keeps only the first k of its union; otherwise it keeps all of it.
  bool reselects = true;
  /// Whether the result has at most k entries; otherwise it has up to k from every rank, or all d
  /// if there is no k.
  bool bounded = true;
  Walk walk = nullptr;
  /// Whether, on a wire that rounds, a sum is sent as the selections in it if that takes fewer
  /// bytes; sums are not rounded. Nodes must sum like a Tree of the same number of ranks.
  bool forwards = false;
  /// Whether it draws from options.seed, on which ranks then agree.
  bool draws = false;
  /// Whether it adds elements of one acc to one another.
  bool adds_elements = false;
  /// Set if there is no walk, because no rank selects its own entries.
  Whole whole = nullptr;
  /// Replaces `whole` on a wire that codes blocks of values. If null, no such wire applies.
  Coded coded = nullptr;
  /// Whether it differs from another algorithm only on wires that code blocks; `auto` considers it
  /// only there.
  bool only_coded = false;
  /// If null, `whole` takes no tensor on a device.
  OnDevice on_device = nullptr;
  /// If null, `auto` never picks it.
  Cost cost = nullptr;
  /// The strictest semantics that the result satisfies, unless its values are coded.
  Semantics keeps = Semantics::kAny;

  [[nodiscard]] bool selects() const { return walk != nullptr; }
  /// Whether its lists can count the ranks in each sum, because no value is ever left out of a sum.
  [[nodiscard]] bool counts() const { return selects() && !reselects; }
  /// Whether k has a meaning.
  [[nodiscard]] bool takes_k() const { return selects() || bounded; }
};

/// The rows of registry.cpp, and rows added at run time.
[[nodiscard]] Registry<AlgorithmRow>& algorithm_registry();

extern const AlgorithmRow kGtopk;
extern const AlgorithmRow kGtopkTree;
extern const AlgorithmRow kTopk;
extern const AlgorithmRow kDense;
extern const AlgorithmRow kDensePlaced;
extern const AlgorithmRow kRsAg;
extern const AlgorithmRow kExactTopk;
extern const AlgorithmRow kHierarchical;
extern const AlgorithmRow kGtopkPlaced;
extern const AlgorithmRow kSketch;
extern const AlgorithmRow kRandomK;
extern const AlgorithmRow kTrueTopk;

}  // namespace gtopk::sparse
