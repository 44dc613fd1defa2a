// A sparse all-reduce whose tensors stay on a device: selected there, exchanged as lists, committed
// there. The device is the kernels on the host executor; the results are the sequential
// reference's, bit for bit, also among ranks that have theirs on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "gtopk/gate.hpp"
#include "gtopk/selection_rule.hpp"
#include "src/gtopk/device/commit.hpp"
#include "src/gtopk/device/selection.hpp"
#include "src/numbers/element_types.hpp"
#include "tests/reference/reference_selectors.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/host_executor.hpp"
#include "tests/support/inproc_ranks.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using sparse::testing::HostExecutor;
using support::InprocRanks;
using support::Tensor;

/// One rank's device: what it has selected, and buffers for what it is told to commit.
class Device {
 public:
  Device(const reference::Problem& problem, Tensor& tensor, std::uint64_t seed)
      : problem_(problem),
        ranks_(static_cast<std::uint32_t>(problem.ranks.size())),
        tensor_(tensor),
        executor_(seed, 1 + seed % 3) {
    const auto capacity = detached_capacity(problem.d, problem.type, problem.options, ranks_);
    if (!capacity) {
      return;
    }
    capacity_ = *capacity;
    rule_ = selection_rule(problem.d, problem.type, problem.options).value();
    lists_.report = &report_;
    lists_.counts = &counts_;
    lists_.selected = entries(capacity_.selected);
    lists_.cleared = memory(capacity_.cleared * capacity_.index_bytes);
    lists_.returned = entries(capacity_.returned);
    lists_.delivered = entries(capacity_.delivered);
    can_ = true;
  }

  /// Whether the problem can be called so.
  [[nodiscard]] bool can() const { return can_; }

  /// With options.state set, `state` is what the last step has left.
  [[nodiscard]] Collective select_and_call() {
    if (problem_.options.state != nullptr) {
      state_ = *problem_.options.state;
      lists_.next = &next_;
    }
    visit_floating(problem_.type, [&]<class T>() { select<T>(); });
    return gtopk::sparse_all_reduce(lists_, problem_.d, problem_.type, problem_.options);
  }
  void commit() {
    visit_floating(problem_.type, [&]<class T>() { commit<T>(); });
  }

 private:
  using Index = std::uint32_t;

  void* memory(std::size_t bytes) {
    // Exactly so much: a sanitizer sees what is written behind it.
    blocks_.push_back(std::make_unique<std::byte[]>(bytes));
    return blocks_.back().get();
  }
  DetachedEntries entries(std::uint64_t count) {
    void* const indices = memory(count * capacity_.index_bytes);
    return {indices, memory(count * (problem_.type == DataType::kFloat64 ? 8 : 4))};
  }

  template <class T>
  sparse::device::Pieces<T> acc() {
    using Value = Accumulation<T>;
    static_assert(sizeof(piece_) == sizeof(sparse::device::Piece<T>));
    auto* const piece = reinterpret_cast<sparse::device::Piece<T>*>(&piece_);
    piece->tensor = reinterpret_cast<T*>(tensor_.values.data());
    piece->residual =
        tensor_.residual ? reinterpret_cast<Value*>(tensor_.residual->data()) : nullptr;
    piece->size = problem_.d;
    return {piece, 1, sparse::device::number_tiles(piece, 1)};
  }
  template <class T>
  static sparse::EntriesOut<Accumulation<T>, Index> typed(const DetachedEntries& entries) {
    return {static_cast<Index*>(entries.indices), static_cast<Accumulation<T>*>(entries.values)};
  }

  template <class T>
  void select() {
    using Value = Accumulation<T>;
    const auto vector = acc<T>();
    using Workspace = sparse::device::RuleWorkspace<Value>;
    sparse::device::Arena measured(nullptr);
    (void)Workspace::in(measured, vector.tiles, problem_.d, rule_);
    sparse::device::Arena arena(static_cast<std::byte*>(memory(measured.taken())));
    const Workspace workspace = Workspace::in(arena, vector.tiles, problem_.d, rule_);
    sparse::device::select_by<T>(rule_, executor_, vector, problem_.d, workspace,
                                 typed<T>(lists_.selected), &report_, state_.numbers.data(),
                                 next_.numbers.data());
  }
  template <class T>
  void commit() {
    const sparse::Edits<Accumulation<T>, Index> edits{
        static_cast<Index*>(lists_.cleared), typed<T>(lists_.returned), typed<T>(lists_.delivered)};
    sparse::device::commit<T>(
        executor_, acc<T>(), nullptr, edits, &counts_,
        static_cast<Accumulation<T>>(detached_divisor(problem_.options, ranks_)));
  }

  const reference::Problem& problem_;
  const std::uint32_t ranks_;
  Tensor& tensor_;
  HostExecutor executor_;
  bool can_ = false;
  DetachedCapacity capacity_;
  SelectionRule rule_;
  SelectionReport report_;
  SelectorState state_;
  SelectorState next_;
  EditCounts counts_;
  Detached lists_;
  sparse::device::Piece<float> piece_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

/// Ranks with an odd number stay on the CPU where `mixed`. Empty, or what differs.
std::string differs(const reference::Problem& problem, std::uint64_t seed, bool mixed) {
  const auto size = static_cast<std::uint32_t>(problem.ranks.size());
  InprocRanks ranks(size, support::network(seed));
  reference::Problem there = problem;
  there.hosts = ranks.hosts();
  const reference::Outcome expected = reference::all_reduce(there);
  std::vector<Tensor> tensors;
  std::vector<SelectorState> states;
  std::vector<reference::Problem> calls(size, problem);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    tensors.push_back(support::tensor_of(problem, rank));
    states.push_back(problem.ranks[rank].state);
  }
  const bool keeps = problem.options.selector == "threshold";
  for (std::uint32_t rank = 0; keeps && rank < size; ++rank) {
    calls[rank].options.state = &states[rank];
  }
  std::vector<std::unique_ptr<Device>> devices(size);
  const auto endings = ranks.run([&](std::uint32_t rank) {
    if (mixed && rank % 2 == 1) {
      return support::sparse_all_reduce(calls[rank], tensors[rank]);
    }
    devices[rank] = std::make_unique<Device>(calls[rank], tensors[rank], seed + rank);
    return devices[rank]->select_and_call();
  });
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    if (!endings[rank]->good()) {
      return fmt::format("rank {}: {}", rank, endings[rank]->text());
    }
    if (devices[rank]) {
      devices[rank]->commit();
    }
    std::string wrong = reference::difference(problem.type, expected.tensor, tensors[rank].values);
    if (wrong.empty() && tensors[rank].residual) {
      wrong = reference::difference(accumulation_type(problem.type),
                                    expected.residuals[rank].value(), *tensors[rank].residual);
    }
    if (wrong.empty() && keeps && states[rank].numbers != expected.states[rank].numbers) {
      wrong = fmt::format("left {} as its state, expected {}", states[rank].numbers[0],
                          expected.states[rank].numbers[0]);
    }
    if (!wrong.empty()) {
      return fmt::format("rank {}: {}", rank, wrong);
    }
  }
  return {};
}

// The wires by turns, put_back and op drawn; every second time half of the ranks are no devices.
TEST(Detached, GivesTheReferencesBitsForEveryAlgorithmAndType) {
  constexpr std::uint64_t kCases = support::kSanitized ? 1 : 6;
  std::uint64_t number = 0;
  std::uint64_t called = 0;
  for (const std::string& algorithm : reference::algorithms()) {
    const std::vector<std::string> wires = reference::wires(algorithm);
    for (const std::uint32_t size : {1U, 2U, 3U, 4U, 7U}) {
      for (const DataType type : reference::kFloatingTypes) {
        for (std::uint64_t one = 0; one < kCases; ++one) {
          const std::uint64_t seed = 1 + 1000 * ++number;
          reference::Case drawn = reference::random_case(seed, type, size, algorithm);
          drawn.problem.options.wire = wires[number % wires.size()];
          if (number % 3 == 0 && (algorithm == "topk" || algorithm == "exact")) {
            drawn.problem.options.op = ReduceOp::kAvg;
            drawn.problem.options.mean = MeanOver::kContributors;
            drawn.problem.options.scale = number % 2 == 0 ? 1000 : 1;
          }
          if (!detached_capacity(drawn.problem.d, type, drawn.problem.options, size)) {
            ASSERT_FALSE(reference::sends_lists(algorithm)) << drawn.description;
            continue;
          }
          ++called;
          ASSERT_EQ(differs(drawn.problem, seed, number % 2 == 1), "")
              << drawn.description << ", " << drawn.problem.options.wire;
        }
      }
    }
  }
  EXPECT_GE(called, kCases * 5 * 4 * 4) << "of at least four algorithms";
}

TEST(Detached, GivesTheReferencesBitsForEverySelector) {
  constexpr std::uint64_t kCases = support::kSanitized ? 1 : 3;
  std::uint64_t seed = 0;
  for (const Choice& selector : selectors()) {
    for (const char* const algorithm : {"gtopk", "topk"}) {
      for (const std::uint32_t size : {1U, 2U, 5U}) {
        for (const DataType type : reference::kFloatingTypes) {
          for (std::uint64_t one = 0; one < kCases; ++one) {
            reference::Case drawn = reference::random_case(++seed, type, size, algorithm);
            SparseOptions& options = drawn.problem.options;
            reference::choose_selector(options, drawn.problem.d, std::string(selector.name));
            options.block = std::max<std::uint64_t>(options.block, 64);
            for (reference::Input& input : drawn.problem.ranks) {
              input.state.numbers[0] = static_cast<double>(seed % 4) / 2;
            }
            ASSERT_EQ(differs(drawn.problem, seed, seed % 2 == 1), "")
                << drawn.description << ", " << selector.name;
          }
        }
      }
    }
  }
}

TEST(Detached, WhatIsNotADevicesIsRefused) {
  SparseOptions options;
  options.k = 3;
  EXPECT_TRUE(detached_capacity(10, DataType::kFloat32, options, 2).has_value());
  options.algorithm = "dense";
  EXPECT_FALSE(detached_capacity(10, DataType::kFloat32, options, 2).has_value());
  options.algorithm = "auto";
  EXPECT_FALSE(detached_capacity(10, DataType::kFloat32, options, 2).has_value());
  options.algorithm = "gtopk";
  options.k = 0;
  EXPECT_THROW((void)detached_capacity(10, DataType::kFloat32, options, 2), Error);
}

// Both parts of a step arrive at its gate: the other one here did so before.
TEST(Detached, HappensAtAGateWithTheOtherPartsOrNotAtAll) {
  for (const auto& [selector, other] : std::vector<std::pair<const char*, bool>>{
           {"exact", true}, {"exact", false}, {"gaussian", true}, {"gaussian", false}}) {
    SelectorState state{.numbers = {7}};
    SparseOptions options;
    options.selector = selector;
    options.k = 2;
    options.state = &state;
    options.gate = std::make_shared<Gate>(2);
    options.gate->arrive(other);
    std::vector<std::uint32_t> selected = {1, 3};
    std::vector<float> values = {5, -2};
    std::vector<std::uint32_t> cleared(2), returned(2), delivered(2);
    std::vector<float> returned_values(2), delivered_values(2);
    const SelectionReport report{.kept = 2, .dropped = 0, .finite = 1};
    EditCounts counts;
    const Detached step{.selected = {selected.data(), values.data()},
                        .report = &report,
                        .cleared = cleared.data(),
                        .returned = {returned.data(), returned_values.data()},
                        .delivered = {delivered.data(), delivered_values.data()},
                        .counts = &counts};
    InprocRanks ranks(1);
    const auto endings = ranks.run(
        [&](std::uint32_t) { return sparse_all_reduce(step, 10, DataType::kFloat32, options); });
    ASSERT_TRUE(endings[0]->good()) << endings[0]->text();
    EXPECT_EQ(options.gate->verdict(), other);
    EXPECT_EQ(counts.happened, other ? 1U : 0U);
    EXPECT_EQ(counts.delivered, other ? 2U : 0U);
    EXPECT_EQ(state.numbers[0], other ? 0.0 : 7.0)
        << selector << " keeps nothing for the next step";
  }
}

TEST(Detached, ADeviceThatSelectsMoreThanItMayIsAnError) {
  SparseOptions options;
  options.k = 3;
  const SelectionReport report{.kept = 4, .dropped = 0, .finite = 1};
  EditCounts counts;
  Detached step;
  step.report = &report;
  step.counts = &counts;
  InprocRanks ranks(1);
  const auto endings = ranks.run(
      [&](std::uint32_t) { return sparse_all_reduce(step, 10, DataType::kFloat32, options); });
  EXPECT_FALSE(endings[0]->good());
  EXPECT_THAT(endings[0]->text(), ::testing::HasSubstr("selected 4 entries"));
  EXPECT_EQ(counts.happened, 0U);
}

}  // namespace
}  // namespace gtopk
