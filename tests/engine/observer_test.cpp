// Engine: what an observer is told about operations that succeed, fail, are aborted or never run,
// and what statistics make of it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/engine/observer.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "tests/support/calls.hpp"

namespace gtopk {
namespace {

using engine::OperationEvent;
using support::InprocRanks;
using support::SharedEnding;
using Lines = std::vector<std::string>;

/// Records what it is told, and expects the times to be in order.
class Recorder final : public engine::Observer {
 public:
  void queued(const OperationEvent& event) override {
    EXPECT_EQ(event.at, event.queued);
    EXPECT_FALSE(event.ran);
    note(event, "queued");
  }
  void started(const OperationEvent& event) override {
    EXPECT_TRUE(event.ran);
    EXPECT_EQ(event.at, event.started);
    EXPECT_GE(event.started, event.queued);
    note(event, "started");
  }
  void phase(const OperationEvent& event, std::string_view name) override {
    EXPECT_GE(event.at, event.phase.empty() ? event.started : event.phase_began);
    note(event, fmt::format("from '{}' to '{}'", event.phase, name));
  }
  void ended(const OperationEvent& event, const Error* error) override {
    EXPECT_GE(event.at, event.queued);
    note(event, fmt::format("ended in '{}'{}{}", event.phase, event.ran ? "" : ", not started",
                            error == nullptr ? "" : ": " + std::string(to_string(error->kind()))));
  }
  [[nodiscard]] Lines take() { return std::exchange(lines_, {}); }

 private:
  void note(const OperationEvent& event, const std::string& what) {
    lines_.push_back(fmt::format("{} #{} {}", event.name, event.sequence, what));
  }
  Lines lines_;
};

/// d = 100 elements on each of two ranks.
struct Tensors {
  engine::OperationSpec call(std::uint32_t rank, std::uint64_t k) {
    sparse::SparseCall call;
    call.tensor = tensors[rank].data();
    call.residual = residuals[rank].data();
    call.d = tensors[rank].size();
    call.options.k = k;
    engine::OperationSpec spec = sparse::collective(call);
    spec.name = "sparse";
    return spec;
  }
  std::vector<std::vector<float>> tensors{2, std::vector<float>(100, 1.0F)};
  std::vector<std::vector<float>> residuals{2, std::vector<float>(100)};
};

bool failed_with(const support::Ending& ending, ErrorKind kind) {
  return ending.error.has_value() && ending.error->kind() == kind;
}

class Observed : public ::testing::Test {
 protected:
  Observed() { ranks_.engine(0).observers().add(recorder_); }

  Tensors tensors_;
  Recorder recorder_;  // outlives the engines
  InprocRanks ranks_{2};
};

const Lines kSuccess = {
    "sparse #1 queued",
    "sparse #1 started",
    "sparse #1 from '' to 'compress'",
    "sparse #1 from 'compress' to 'exchange'",
    "sparse #1 from 'exchange' to 'commit'",
    "sparse #1 ended in 'commit'",
};

TEST_F(Observed, AllReduce_IsSeenFromQueueThroughPhasesToEnd) {
  for (const SharedEnding& ending :
       ranks_.run([&](std::uint32_t rank) { return tensors_.call(rank, 10); })) {
    ASSERT_TRUE(ending->good()) << ending->text();
  }
  EXPECT_EQ(recorder_.take(), kSuccess);
  EXPECT_TRUE(ranks_.close().empty());
}

TEST_F(Observed, OneThatFailsEndsInThePhaseThatItFailedIn) {
  for (const SharedEnding& ending :
       ranks_.run([&](std::uint32_t rank) { return tensors_.call(rank, 10 + rank); })) {
    ASSERT_TRUE(failed_with(*ending, ErrorKind::kMismatch)) << ending->text();
  }
  const Lines expected = {
      "sparse #1 queued",
      "sparse #1 started",
      "sparse #1 from '' to 'compress'",
      "sparse #1 from 'compress' to 'exchange'",
      "sparse #1 ended in 'exchange': mismatch",
  };
  EXPECT_EQ(recorder_.take(), expected);
}

TEST_F(Observed, AbortedOnesEndAndLaterOnesNeverStart) {
  const SharedEnding alone = ranks_.submit(0, tensors_.call(0, 10));
  ranks_.run_for(std::chrono::milliseconds(1));
  ranks_.engine(0).abort_group(*ranks_.group(0), Error(ErrorKind::kAborted, "enough"));
  ranks_.run_until([&] { return alone->ended; });
  const SharedEnding late = ranks_.submit(0, tensors_.call(0, 10));
  ranks_.run_until([&] { return late->ended; });
  ASSERT_TRUE(failed_with(*alone, ErrorKind::kAborted)) << alone->text();
  ASSERT_TRUE(failed_with(*late, ErrorKind::kAborted)) << late->text();
  const Lines expected = {
      "sparse #1 queued",
      "sparse #1 started",
      "sparse #1 from '' to 'compress'",
      "sparse #1 from 'compress' to 'exchange'",
      "sparse #1 ended in 'exchange': aborted",
      "sparse #2 queued",
      "sparse #2 ended in '', not started: aborted",
  };
  EXPECT_EQ(recorder_.take(), expected);
}

TEST_F(Observed, RemovedObserver_ReceivesNoEvents) {
  ranks_.engine(0).observers().remove(recorder_);
  for (const SharedEnding& ending :
       ranks_.run([&](std::uint32_t rank) { return tensors_.call(rank, 10); })) {
    ASSERT_TRUE(ending->good()) << ending->text();
  }
  EXPECT_EQ(recorder_.take(), Lines{});
}

TEST_F(Observed, StatisticsAreFedFromTheSameEvents) {
  // In virtual time: rank 1 calls 3 ms after rank 0, which waits in its exchange.
  const SharedEnding first = ranks_.submit(0, tensors_.call(0, 10));
  ranks_.run_for(std::chrono::milliseconds(3));
  const SharedEnding second = ranks_.submit(1, tensors_.call(1, 10));
  ranks_.run_all();
  ASSERT_TRUE(first->good() && second->good());
  const Statistics waited = ranks_.group(0)->metrics.read();
  EXPECT_EQ(waited.operations, 1U);
  EXPECT_EQ(waited.most_in_flight, 1U);
  EXPECT_GE(waited.exchange_seconds, 0.0029);
  EXPECT_GE(waited.run_seconds, waited.exchange_seconds);
  EXPECT_LT(ranks_.group(1)->metrics.read().exchange_seconds, 0.0029);
}

TEST(Metrics, EveryRowOfTheTableHasANameAndOnePlaceOfItsOwn) {
  Statistics all;
  engine::Metrics metrics;
  for (std::size_t row = 0; row < kMetrics.size(); ++row) {
    EXPECT_FALSE(kMetrics[row].name.empty() || kMetrics[row].unit.empty());
    EXPECT_FALSE(kMetrics[row].description.empty());
    ASSERT_NE(kMetrics[row].count == nullptr, kMetrics[row].seconds == nullptr);
    metrics.add(static_cast<Metric>(row), (row + 1) * 1'000'000'000);
  }
  all = metrics.read();
  for (std::size_t row = 0; row < kMetrics.size(); ++row) {
    const MetricInfo& metric = kMetrics[row];
    if (metric.count != nullptr) {
      EXPECT_EQ(all.*metric.count, (row + 1) * 1'000'000'000) << metric.name;
    } else {
      EXPECT_DOUBLE_EQ(all.*metric.seconds, static_cast<double>(row + 1)) << metric.name;
    }
  }
}

}  // namespace
}  // namespace gtopk
