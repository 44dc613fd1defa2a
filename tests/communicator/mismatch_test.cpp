// Communicator: when real processes call different things, all get an error that names both sides'
// values; the next operation, called right behind it, gives the reference's result. Every kind of
// mismatch, for every algorithm, at every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "tests/communicator/member.hpp"
#include "tests/reference/hosts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/forked_ranks.hpp"

namespace gtopk::test {
namespace {

using support::Tensor;
using testing::HasSubstr;

/// What one rank calls.
struct Shape {
  enum class Collective : std::uint8_t { kSparseAllReduce, kAllReduce, kBarrier };

  Collective collective = Collective::kSparseAllReduce;
  std::uint64_t d = 200;
  DataType type = DataType::kFloat32;
  SparseOptions options = {.k = 20};
};

/// One rank calls `odd`, the others `usual`; the texts with which errors name the difference.
struct Mismatch {
  Shape usual;
  Shape odd;
  std::string usual_text;
  std::string odd_text;
  std::uint32_t odd_rank = 0;
};

/// Equally many for each algorithm, except two fewer for dense, which has no k.
std::vector<Mismatch> mismatches_of(const std::string& algorithm, std::uint32_t odd_rank) {
  std::vector<Mismatch> made;
  const auto add = [&](const std::string& usual_text, const std::string& odd_text,
                       const std::function<void(Shape&)>& change) {
    Shape usual;
    usual.options.algorithm = algorithm;
    Shape odd = usual;
    change(odd);
    made.push_back({usual, odd, usual_text, odd_text, odd_rank});
  };
  for (const std::uint64_t d : {199UL, 400UL, 20'000UL}) {  // dense: 20,000 take the ring
    add("d=200,", fmt::format("d={},", d), [=](Shape& shape) { shape.d = d; });
  }
  for (const DataType type : {DataType::kFloat64, DataType::kBfloat16, DataType::kFloat16}) {
    add("dtype=float32,", fmt::format("dtype={},", to_string(type)),
        [=](Shape& shape) { shape.type = type; });
  }
  for (const std::string& other : reference::algorithms()) {
    if (other == algorithm) {
      continue;
    }
    add(fmt::format("algorithm={},", algorithm), fmt::format("algorithm={},", other),
        [=](Shape& shape) { shape.options.algorithm = other; });
  }
  if (!algorithm.starts_with("dense")) {
    for (const std::uint64_t k : {3UL, 50UL}) {
      add("k=20,", fmt::format("k={},", k), [=](Shape& shape) { shape.options.k = k; });
    }
  }
  add("op=SUM,", "op=AVG,", [](Shape& shape) { shape.options.op = ReduceOp::kAvg; });
  add("put_back=own,", "put_back=merged,",
      [](Shape& shape) { shape.options.put_back = PutBack::kMerged; });
  add("called sparse_all_reduce(", "called all_reduce(d=200,",
      [](Shape& shape) { shape.collective = Shape::Collective::kAllReduce; });
  add("called sparse_all_reduce(", "called barrier()",
      [](Shape& shape) { shape.collective = Shape::Collective::kBarrier; });
  return made;
}

std::size_t per_odd_rank() {
  const std::size_t algorithms = reference::algorithms().size();
  const std::size_t of_each = 3 + 3 + (algorithms - 1) + 2 + 2 + 2;
  return algorithms * of_each - 2 * 2;  // dense and dense-placed have no k
}

std::vector<Mismatch> all_mismatches(std::uint32_t ranks) {
  std::vector<Mismatch> all;
  for (const std::string& algorithm : reference::algorithms()) {
    for (std::uint32_t odd_rank = 0; odd_rank < ranks; ++odd_rank) {
      const std::vector<Mismatch> some = mismatches_of(algorithm, odd_rank);
      all.insert(all.end(), some.begin(), some.end());
    }
  }
  return all;
}

/// An operation that all ranks call alike.
struct Agreed {
  reference::Case drawn;
  reference::Outcome outcome;
};

std::vector<Agreed> agreed_operations(std::uint32_t ranks) {
  std::vector<Agreed> made;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    for (const std::string& algorithm : reference::algorithms()) {
      Agreed agreed{reference::random_case(seed, DataType::kFloat32, ranks, algorithm), {}};
      agreed.outcome = reference::all_reduce(agreed.drawn.problem);
      made.push_back(std::move(agreed));
    }
  }
  return made;
}

/// Runs one rank through all of them.
class Caller {
 public:
  Caller(ForkedRank& self, const std::vector<Agreed>& agreed)
      : rank_(static_cast<std::uint32_t>(self.rank())),
        agreed_(agreed),
        member_(self, support::usual_hosts(static_cast<std::uint32_t>(self.size())).at(rank_)) {}

  void disagree(const Mismatch& mismatch) {
    const Shape& shape = rank_ == mismatch.odd_rank ? mismatch.odd : mismatch.usual;
    const auto tensor = std::make_shared<reference::Bytes>(reference::zeros(shape.type, shape.d));
    for (std::uint64_t i = 0; i < shape.d; ++i) {
      reference::store(shape.type, *tensor, i, 1.0 + static_cast<double>(i % 7));
    }
    const reference::Bytes before(tensor->begin(), tensor->end());
    const Pending pending;
    Call call = pending.call();
    call.keepalive = tensor;  // a failed operation's messages may still be in flight
    switch (shape.collective) {
      case Shape::Collective::kSparseAllReduce:
        member_.group().run(
            gtopk::sparse_all_reduce(tensor->data(), nullptr, shape.d, shape.type, shape.options),
            std::move(call));
        break;
      case Shape::Collective::kAllReduce:
        member_.group().run(gtopk::all_reduce(tensor->data(), shape.d, shape.type, ReduceOp::kSum),
                            std::move(call));
        break;
      case Shape::Collective::kBarrier:
        member_.group().run(gtopk::barrier(), std::move(call));
        break;
    }
    const Ending ending = pending.wait();
    ASSERT_FALSE(ending.good());
    ASSERT_EQ(*ending.error, ErrorKind::kMismatch) << ending.text;
    ASSERT_THAT(ending.text, HasSubstr(mismatch.usual_text));
    ASSERT_THAT(ending.text, HasSubstr(mismatch.odd_text));
    ASSERT_THAT(ending.text, HasSubstr(fmt::format("rank {} (host ", mismatch.odd_rank)));
    ASSERT_THAT(ending.text, HasSubstr(fmt::format(" #{} of group 'default'", sequence_)));
    ASSERT_TRUE(*tensor == before) << "it failed, and has written";
    ++sequence_;
    ++disagreed_;
  }

  void agree() {
    const Agreed& agreed = agreed_[disagreed_ % agreed_.size()];
    const reference::Problem& problem = agreed.drawn.problem;
    const auto tensor = std::make_shared<Tensor>(support::tensor_of(problem, rank_));
    const Pending pending;
    Call call = pending.call();
    call.keepalive = tensor;
    member_.group().run(
        gtopk::sparse_all_reduce(tensor->values.data(),
                                 tensor->residual ? tensor->residual->data() : nullptr, problem.d,
                                 problem.type, problem.options),
        std::move(call));
    const Ending ending = pending.wait();
    ASSERT_TRUE(ending.good()) << ending.text;
    ASSERT_EQ(reference::difference(problem.type, agreed.outcome.tensor, tensor->values), "")
        << agreed.drawn.description;
    if (tensor->residual) {
      ASSERT_EQ(reference::difference(problem.type, agreed.outcome.residuals[rank_].value(),
                                      *tensor->residual),
                "")
          << agreed.drawn.description;
    }
    ++sequence_;
  }

  [[nodiscard]] std::size_t disagreed() const { return disagreed_; }

 private:
  std::uint32_t rank_;
  const std::vector<Agreed>& agreed_;
  Member member_;
  std::uint64_t sequence_ = 1;
  std::size_t disagreed_ = 0;
};

using Parameters = std::tuple<std::uint32_t, const char*>;

class MismatchedProcesses : public testing::TestWithParam<Parameters> {};

// Every mismatch, at each rank: 2 + 3 + 5 ranks, 2 networks.
TEST_P(MismatchedProcesses, Mismatch_NamesBothValuesAndGroupWorksOn) {
  const auto [size, tls] = GetParam();
  const std::vector<Mismatch> mismatches = all_mismatches(size);
  const std::vector<Agreed> agreed = agreed_operations(size);
  ForkedRanks ranks(static_cast<int>(size),
                    [&](ForkedRank& self) {
                      Caller caller(self, agreed);
                      for (const Mismatch& mismatch : mismatches) {
                        SCOPED_TRACE(fmt::format("rank {}: {} against {}", mismatch.odd_rank,
                                                 mismatch.odd_text, mismatch.usual_text));
                        caller.disagree(mismatch);
                        if (!testing::Test::HasFailure()) {
                          caller.agree();
                        }
                        if (testing::Test::HasFailure()) {
                          return;
                        }
                      }
                      self.say(std::to_string(caller.disagreed()));
                    },
                    {.limit = std::chrono::seconds(250), .environment = {{"UCX_TLS", tls}}});
  for (const RankReport& report : ranks.join()) {
    EXPECT_TRUE(report.passed()) << report;
  }
  if (HasFailure()) {
    return;
  }
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    EXPECT_EQ(ranks.hear(static_cast<int>(rank)), std::to_string(per_odd_rank() * size));
  }
}

std::vector<std::uint32_t> mismatched_rank_counts() {
  return kSanitized ? std::vector{3U} : std::vector{2U, 3U, 5U};
}

INSTANTIATE_TEST_SUITE_P(Some, MismatchedProcesses,
                         testing::Combine(testing::ValuesIn(mismatched_rank_counts()),
                                          testing::Values(kTcp, kSharedMemory)),
                         [](const auto& instance) {
                           return fmt::format("P{}_{}", std::get<0>(instance.param),
                                              name_of_transport(std::get<1>(instance.param)));
                         });

}  // namespace
}  // namespace gtopk::test
