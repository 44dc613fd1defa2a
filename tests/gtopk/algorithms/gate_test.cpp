// Sparse, algorithms: of the parts of a step that share a gate, all happen or none does, on
// every rank, whatever happens to one of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "gtopk/gate.hpp"
#include "src/engine/engine.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::SharedEnding;
using support::Tensor;
using testing::HasSubstr;

/// A step of several parts on every rank, with one gate per rank.
class Step {
 public:
  Step(std::uint32_t ranks, std::uint32_t arrivals) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      gates_.push_back(std::make_shared<Gate>(arrivals));
    }
  }

  [[nodiscard]] Gate& gate(std::uint32_t rank) { return *gates_[rank]; }
  [[nodiscard]] std::shared_ptr<Gate> shared_gate(std::uint32_t rank) { return gates_[rank]; }

  /// Adds a part.
  void run(InprocRanks& ranks, const reference::Problem& problem) {
    Part& part = parts_.emplace_back();
    part.problem = problem;
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      part.tensors.push_back(support::tensor_of(problem, rank));
    }
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      part.problem.options.gate = gates_[rank];
      part.endings.push_back(
          ranks.submit(rank, support::sparse_all_reduce(part.problem, part.tensors[rank])));
    }
    part.problem.options.gate = nullptr;
  }

  /// Empty if every part equals the reference's: a result if `happened`, otherwise NaN and
  /// unchanged residuals.
  [[nodiscard]] std::string differs(bool happened) const {
    for (std::size_t number = 0; number < parts_.size(); ++number) {
      const Part& part = parts_[number];
      const reference::Outcome expected = reference::all_reduce(part.problem);
      for (std::uint32_t rank = 0; rank < part.tensors.size(); ++rank) {
        const std::string what = differs(part, rank, happened ? &expected : nullptr);
        if (!what.empty()) {
          return fmt::format("part {} on rank {}: {}", number, rank, what);
        }
      }
    }
    return {};
  }

 private:
  struct Part {
    reference::Problem problem;
    std::vector<Tensor> tensors;
    std::vector<SharedEnding> endings;
  };

  static std::string differs(const Part& part, std::uint32_t rank,
                             const reference::Outcome* expected) {
    if (!part.endings[rank]->good()) {
      return part.endings[rank]->text();
    }
    const DataType type = part.problem.type;
    const Tensor& tensor = part.tensors[rank];
    const auto& before = part.problem.ranks[rank].residual;
    if (tensor.residual) {
      const std::string what = reference::difference(
          accumulation_type(type), expected != nullptr ? *expected->residuals[rank] : *before,
          *tensor.residual);
      if (!what.empty()) {
        return "residual: " + what;
      }
    }
    if (expected != nullptr) {
      return reference::difference(type, expected->tensor, tensor.values);
    }
    for (std::uint64_t i = 0; i < part.problem.d; ++i) {
      if (!std::isnan(reference::load(type, tensor.values, i))) {
        return fmt::format("{} is no NaN", i);
      }
    }
    return {};
  }

  std::vector<std::shared_ptr<Gate>> gates_;
  std::vector<Part> parts_;
};

/// Another call on every rank, of ten ones each; `options_of` gives each rank's options.
struct Ones {
  template <class OptionsOf>
  Ones(InprocRanks& ranks, OptionsOf options_of)
      : tensors(ranks.size(), std::vector<float>(10, 1.0F)) {
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      endings.push_back(
          ranks.submit(rank, sparse_all_reduce(tensors[rank].data(), nullptr, tensors[rank].size(),
                                               DataType::kFloat32, options_of(rank))));
    }
  }

  std::vector<std::vector<float>> tensors;
  std::vector<SharedEnding> endings;
};

SparseOptions with_gate(std::uint64_t k, std::shared_ptr<Gate> gate) {
  SparseOptions options{.k = k};
  options.gate = std::move(gate);
  return options;
}

reference::Problem finite_problem(std::uint64_t seed, std::uint32_t ranks) {
  for (;; seed += 1000) {
    const std::string& algorithm = reference::one_of(reference::algorithms(), seed);
    const DataType type = reference::one_of(reference::kFloatingTypes, seed / 8);
    reference::Problem problem = reference::random_case(seed, type, ranks, algorithm).problem;
    problem.options.wire = reference::one_of(reference::wires(algorithm), seed / 3);
    if (problem.d != 0 && reference::all_reduce(problem).happened) {
      return problem;
    }
  }
}

// Also under a loss scale, which multiplies the result and leaves residuals unscaled.
TEST(Gate, AllPartsHaveHappenedOrNoneHas) {
  const std::vector<double> scales = {1, 65536, 0.5, 1000};
  std::uint32_t happened = 0;
  const std::uint64_t cases = support::kSanitized ? 60 : 300;
  for (std::uint64_t seed = 1; seed <= cases; ++seed) {
    const auto size = reference::one_of(reference::kRankCounts, seed);
    const auto parts = static_cast<std::uint32_t>(1 + seed / 3 % 4);
    InprocRanks ranks(size, support::network(seed));
    Step step(size, parts);
    bool all = true;
    for (std::uint32_t part = 0; part < parts; ++part) {
      const std::uint64_t number = 17 * seed + part;
      const std::string& algorithm = reference::one_of(reference::algorithms(), number);
      const DataType type = reference::one_of(reference::kFloatingTypes, number / 3);
      reference::Problem problem = reference::random_case(number, type, size, algorithm).problem;
      problem.options.scale = scales[seed % scales.size()];
      all = all && reference::all_reduce(problem).happened;
      step.run(ranks, problem);
    }
    ranks.run_all();
    ASSERT_EQ(step.differs(all), "") << "seed " << seed;
    happened += all ? 1 : 0;
  }
  EXPECT_GT(happened, cases / 4);
  EXPECT_LT(happened, cases);
}

// More parts than a group can have in flight: those that wait at the gate make space.
TEST(Gate, ManyPartsPassIt) {
  for (const bool finite : {true, false}) {
    InprocRanks ranks(3);
    const auto parts = static_cast<std::uint32_t>(2 * engine::Engine::kMaxInFlight + 3);
    Step step(3, parts + 1);
    for (std::uint32_t part = 0; part < parts; ++part) {
      step.run(ranks, finite_problem(part, 3));
    }
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      step.gate(rank).arrive(finite);
    }
    ranks.run_all();
    EXPECT_EQ(step.differs(finite), "");
    EXPECT_EQ(step.gate(0).verdict(), finite);
  }
}

TEST(Gate, NothingIsWrittenBeforeItsLastArrival) {
  InprocRanks ranks(2);
  const reference::Problem problem = finite_problem(5, 2);
  Step step(2, 2);
  step.run(ranks, problem);
  ranks.run_for(std::chrono::seconds(1));
  EXPECT_EQ(step.gate(0).verdict(), std::nullopt);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    step.gate(rank).arrive(true);
  }
  ranks.run_all();
  EXPECT_EQ(step.differs(true), "");
}

TEST(Gate, ThatIsShutLetsNobodyCommit) {
  InprocRanks ranks(2);
  Step step(2, 2);
  step.run(ranks, finite_problem(3, 2));
  ranks.run_for(std::chrono::seconds(1));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_FALSE(step.gate(rank).shut());
    step.gate(rank).arrive(true);  // too late
    EXPECT_FALSE(step.gate(rank).shut());
  }
  ranks.run_all();
  EXPECT_EQ(step.differs(false), "");
}

TEST(Gate, APartThatIsNeverRunHasNotHappened) {
  InprocRanks ranks(2);
  Step step(2, 2);
  step.run(ranks, finite_problem(3, 2));
  std::vector<float> tensor(4, 1.0F);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const Collective unused = sparse_all_reduce(tensor.data(), nullptr, 4, DataType::kFloat32,
                                                with_gate(1, step.shared_gate(rank)));
  }
  ranks.run_all();
  EXPECT_EQ(step.differs(false), "");
}

// Ranks differ in one part: it is an error everywhere, the other parts do not happen, and the group
// still works.
TEST(Gate, APartThatFailsHasNotHappened) {
  InprocRanks ranks(3);
  Step step(3, 2);
  step.run(ranks, finite_problem(2, 3));
  const Ones other(ranks,
                   [&](std::uint32_t rank) { return with_gate(rank + 1, step.shared_gate(rank)); });
  ranks.run_all();
  EXPECT_EQ(step.differs(false), "");
  for (const SharedEnding& ending : other.endings) {
    ASSERT_TRUE(ending->error.has_value());
    EXPECT_EQ(ending->error->kind(), ErrorKind::kMismatch) << ending->text();
  }
  EXPECT_EQ(support::group_works(ranks), "");
}

TEST(Gate, RanksWithGatesOfDifferentSizesDiffer) {
  InprocRanks ranks(2);
  const Ones calls(
      ranks, [](std::uint32_t rank) { return with_gate(1, std::make_shared<Gate>(1 + rank)); });
  ranks.run_all();
  for (const SharedEnding& ending : calls.endings) {
    EXPECT_THAT(ending->text(), AllOf(HasSubstr("gate=1"), HasSubstr("gate=2")));
  }
}

// No wait is endless: the operation's own deadline holds at the gate, too.
TEST(Gate, WithoutItsLastArrivalIsATimeOutThatSaysSo) {
  InprocRanks ranks(2);
  std::vector<std::shared_ptr<Gate>> gates;
  const Ones calls(ranks, [&](std::uint32_t) {
    return with_gate(1, gates.emplace_back(std::make_shared<Gate>(2)));
  });
  ranks.run_all();
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(
        calls.endings[rank]->text(),
        AllOf(HasSubstr("timed out"), HasSubstr("waiting at its gate for the rest of the step")));
    EXPECT_EQ(gates[rank]->verdict(), false);
    EXPECT_EQ(calls.tensors[rank], std::vector<float>(10, 1.0F));
  }
}

TEST(Gate, HoldsForWhatThePlannerChooses) {
  for (const bool happened : {true, false}) {
    InprocRanks ranks(2);
    std::vector<std::vector<float>> tensors(2, {1, 2, 3, 4});
    std::vector<std::vector<float>> residuals(2, std::vector<float>(4, 0.5F));
    std::vector<std::shared_ptr<Gate>> gates;
    std::vector<SharedEnding> endings;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      SparseOptions options{.k = 1, .algorithm = "auto", .semantics = Semantics::kGtopk};
      options.gate = gates.emplace_back(std::make_shared<Gate>(2));
      endings.push_back(
          ranks.submit(rank, sparse_all_reduce(tensors[rank].data(), residuals[rank].data(), 4,
                                               DataType::kFloat32, options)));
    }
    for (const auto& gate : gates) {
      gate->arrive(happened);
    }
    ranks.run_all();
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(endings[rank]->good()) << endings[rank]->text();
      EXPECT_EQ(std::isnan(tensors[rank][0]), !happened);
      EXPECT_EQ(residuals[rank] == std::vector<float>(4, 0.5F), !happened);
    }
  }
}

TEST(Gate, OfNoArrivalsIsAnError) { EXPECT_THROW(Gate(0), Error); }

}  // namespace
}  // namespace gtopk
