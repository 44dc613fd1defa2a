// CUDA: dispatches a call by its types, and enqueues its launches on an executor: the GPU's
// (gpu_executor.cuh), or a host executor in tests. Each source file that includes this header
// chooses the types that it compiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "src/cuda/calls.hpp"
#include "src/gtopk/device/commit.hpp"
#include "src/gtopk/device/selection.hpp"
#include "src/gtopk/device/sketch.hpp"
#include "src/gtopk/device/sums.hpp"
#include "src/gtopk/value/sketch_hashes.hpp"

namespace gtopk::cuda {

namespace device = sparse::device;

static_assert(std::is_same_v<Index, device::Index>);

template <class T>
[[nodiscard]] device::Pieces<T> pieces_of(const VectorOf& acc) {
  static_assert(sizeof(PieceOf) == sizeof(device::Piece<T>));
  return {reinterpret_cast<const device::Piece<T>*>(acc.pieces), acc.count, acc.tiles};
}

template <class Value>
[[nodiscard]] sparse::EntriesOut<Value, Index> output_in(const ListOf& list) {
  return {static_cast<Index*>(list.indices), static_cast<Value*>(list.values)};
}

template <class T>
[[nodiscard]] std::size_t select_workspace_bytes(const VectorOf& acc, const SelectionRule& rule) {
  device::Arena measured(nullptr);
  (void)device::RuleWorkspace<Accumulation<T>>::in(measured, acc.tiles, acc.d, rule);
  return measured.taken();
}

template <class T, class Executor>
void select(Executor& executor, const SelectCall& call) {
  using Value = Accumulation<T>;
  device::Arena arena(static_cast<std::byte*>(call.workspace));
  const auto workspace =
      device::RuleWorkspace<Value>::in(arena, call.acc.tiles, call.acc.d, call.rule);
  device::select_by<T>(call.rule, executor, pieces_of<T>(call.acc), call.acc.d, workspace,
                       output_in<Value>(call.kept), static_cast<device::Report*>(call.report),
                       call.state, call.next);
}

template <class T, class Executor>
void commit(Executor& executor, const CommitCall& call) {
  using Value = Accumulation<T>;
  const sparse::Edits<Value, Index> edits{static_cast<Index*>(call.cleared),
                                          output_in<Value>(call.returned),
                                          output_in<Value>(call.delivered)};
  device::commit<T>(executor, pieces_of<T>(call.acc), static_cast<Value*>(call.momentum), edits,
                    static_cast<const EditCounts*>(call.counts), static_cast<Value>(call.divisor),
                    call.unless);
}

template <class T, class Executor>
void accumulate(Executor& executor, const AccumulateCall& call) {
  executor.launch(executor.wide(),
                  device::Accumulate<T>{pieces_of<T>(call.acc),
                                        static_cast<Accumulation<T>*>(call.to), call.only_if});
}

template <class T, class Executor>
void gather(Executor& executor, const GatherCall& call) {
  executor.launch(
      executor.wide(),
      device::Gather<T>{pieces_of<T>(call.acc), static_cast<const Index*>(call.indices), call.count,
                        static_cast<Accumulation<T>*>(call.values), call.finite});
}

template <class T, class Executor>
void commit_whole(Executor& executor, const CommitWholeCall& call) {
  using Value = Accumulation<T>;
  const auto* const counts = static_cast<const EditCounts*>(call.counts);
  executor.launch(
      executor.wide(),
      device::CommitWhole<T>{pieces_of<T>(call.acc), static_cast<const Value*>(call.sums),
                             &counts->happened, static_cast<Value>(call.divisor), call.only_if});
}

template <class Value>
[[nodiscard]] device::SketchWorkspace<Value> sketch_workspace_in(device::Arena& arena,
                                                                 std::uint64_t columns,
                                                                 std::uint64_t d,
                                                                 std::uint64_t most) {
  return device::SketchWorkspace<Value>::in(arena, sparse::SketchHashes::kRows * columns, d, most);
}

template <class Value>
[[nodiscard]] std::size_t sketch_workspace_bytes(std::uint64_t columns, std::uint64_t d,
                                                 std::uint64_t most) {
  device::Arena measured(nullptr);
  (void)sketch_workspace_in<Value>(measured, columns, d, most);
  return measured.taken();
}

template <class T, class Executor>
void sketch(Executor& executor, const SketchCall& call) {
  using Value = Accumulation<T>;
  device::Arena arena(static_cast<std::byte*>(call.workspace));
  // The number of entries to find is not known yet; their memory comes after the rest.
  const auto workspace = sketch_workspace_in<Value>(arena, call.columns, call.acc.d, 1);
  const auto hashes = sparse::SketchHashes::drawn_from(call.seed, call.columns);
  device::sketch<T>(executor, pieces_of<T>(call.acc), call.acc.d, hashes, workspace,
                    static_cast<Value*>(call.cells));
}

template <class Value, class Executor>
void find(Executor& executor, const FindCall& call) {
  device::Arena arena(static_cast<std::byte*>(call.workspace));
  const auto workspace = sketch_workspace_in<Value>(arena, call.columns, call.d, call.most);
  const auto hashes = sparse::SketchHashes::drawn_from(call.seed, call.columns);
  device::find_heaviest(executor, call.d, hashes, static_cast<const Value*>(call.cells), call.most,
                        workspace, output_in<Value>(call.heaviest),
                        static_cast<device::Report*>(call.report));
}

/// A selection from this many elements looks for candidates first (device/select.hpp).
inline constexpr std::uint64_t kMany = std::uint64_t{1} << 40U;

/// Makes each launch that a call on tensors of a type may make, with meaningless arguments, for an
/// executor that launches nothing.
template <class T, class Executor>
void launch_all_of_type(Executor& executor) {
  using Kind = SelectionRule::Kind;
  const EditCounts counts;
  for (const Kind kind :
       {Kind::kExact, Kind::kNormal, Kind::kSample, Kind::kThreshold, Kind::kBlocks}) {
    SelectCall call;
    call.rule = {.kind = kind, .k = 1, .most = 1, .stride = 1, .block = 1};
    select<T>(executor, call);
    call.acc.d = kMany;
    select<T>(executor, call);
  }
  CommitCall commits;
  commits.counts = &counts;
  commit<T>(executor, commits);
  accumulate<T>(executor, AccumulateCall{});
  gather<T>(executor, GatherCall{});
  CommitWholeCall whole;
  whole.counts = &counts;
  commit_whole<T>(executor, whole);
  sketch<T>(executor, SketchCall{});
}

/// Does the same for calls that depend only on the type of values.
template <class Value, class Executor>
void launch_all_of_values(Executor& executor) {
  for (const std::uint64_t d : {std::uint64_t{0}, kMany}) {
    FindCall call;
    call.d = d;
    call.most = 1;
    find<Value>(executor, call);
  }
}

}  // namespace gtopk::cuda
