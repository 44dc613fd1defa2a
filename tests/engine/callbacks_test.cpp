// Engine: callbacks that throw: nothing leaves the engine, all others are called, and the group
// still works.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "gtopk/collectives.hpp"
#include "src/engine/group_view.hpp"
#include "src/engine/observer.hpp"
#include "tests/support/calls.hpp"

namespace gtopk {
namespace {

using engine::OperationEvent;
using engine::OperationSpec;
using support::InprocRanks;
using Done = std::function<void(std::exception_ptr)>;

/// What a callback throws.
using Throw = std::function<void()>;

struct Thrown {
  const char* name;
  Throw now;
};
void PrintTo(const Thrown& thrown, std::ostream* out) {  // NOLINT(readability-identifier-naming)
  *out << thrown.name;
}

const std::vector<Thrown> kThrown = {
    {"StdException", [] { throw std::runtime_error("thrown by the test"); }},
    {"Error", [] { throw Error(ErrorKind::kAborted, "thrown by the test"); }},
    {"Integer", [] { throw 7; }},
};

/// Throws whatever it is told.
class Thrower final : public engine::Observer {
 public:
  explicit Thrower(Throw now) : now_(std::move(now)) {}
  void queued(const OperationEvent& /*event*/) override { now_(); }
  void started(const OperationEvent& /*event*/) override { now_(); }
  void phase(const OperationEvent& /*event*/, std::string_view /*name*/) override { now_(); }
  void ended(const OperationEvent& /*event*/, const Error* /*error*/) override { now_(); }

 private:
  Throw now_;
};

/// Counts what it is told.
class Counter final : public engine::Observer {
 public:
  void queued(const OperationEvent& /*event*/) override { ++queued_; }
  void started(const OperationEvent& /*event*/) override { ++started_; }
  void phase(const OperationEvent& /*event*/, std::string_view /*name*/) override { ++phases_; }
  void ended(const OperationEvent& /*event*/, const Error* /*error*/) override { ++ended_; }

  [[nodiscard]] std::vector<int> counts() const { return {queued_, started_, phases_, ended_}; }

 private:
  int queued_ = 0;
  int started_ = 0;
  int phases_ = 0;
  int ended_ = 0;
};

class ThrowingCallbacks : public ::testing::TestWithParam<Thrown> {
 protected:
  void TearDown() override { EXPECT_TRUE(ranks_.close().empty()); }

  /// Rank 0 sums one integer with the others and gets told by `done`.
  void call(Done done) {
    values_.push_back(std::make_unique<std::int64_t>(1));
    OperationSpec spec = all_reduce(values_.back().get(), 1, DataType::kInt64, ReduceOp::kSum);
    spec.timeout = InprocRanks::kTimeout;
    spec.done = std::move(done);
    ranks_.engine(0).submit(ranks_.group(0), std::move(spec));
  }
  /// Notes that it was called, with an error or without.
  [[nodiscard]] Done told(const std::string& name) {
    return [this, name](const std::exception_ptr& error) {
      told_.push_back(name + (error ? " failed" : " ended"));
    };
  }
  /// The same, and throws.
  [[nodiscard]] Done throws(const std::string& name) {
    return [then = told(name)](const std::exception_ptr& error) {
      then(error);
      GetParam().now();
    };
  }
  /// Rank 1's part of so many calls; runs until rank 0 has been told of them.
  void run(std::size_t calls) {
    std::vector<std::int64_t> values(calls, 1);
    std::vector<support::SharedEnding> endings;
    for (std::int64_t& value : values) {
      endings.push_back(ranks_.submit(1, all_reduce(&value, 1, DataType::kInt64, ReduceOp::kSum)));
    }
    ranks_.run_until([&] { return told_.size() == calls; });
    ranks_.run_all();
    for (const support::SharedEnding& ending : endings) {
      EXPECT_TRUE(ending->good()) << ending->text();
    }
  }

  std::vector<std::unique_ptr<std::int64_t>> values_;
  std::vector<std::string> told_;
  InprocRanks ranks_{2};
};

using Lines = std::vector<std::string>;

TEST_P(ThrowingCallbacks, OneAmongSeveralStopsNoOther) {
  call(told("first"));
  call(throws("second"));
  call(told("third"));
  run(3);
  EXPECT_EQ(told_, Lines({"first ended", "second ended", "third ended"}));
  EXPECT_EQ(support::group_works(ranks_), "");
}

TEST_P(ThrowingCallbacks, OneOfManyThatFailAtOnceStopsNoOther) {
  for (const char* const name : {"first", "second", "third"}) {
    call(throws(name));
  }
  ranks_.run_for(std::chrono::milliseconds(1));
  ranks_.engine(0).abort_group(*ranks_.group(0), Error(ErrorKind::kAborted, "enough"));
  ranks_.run_until([&] { return told_.size() == 3; });
  EXPECT_EQ(told_, Lines({"first failed", "second failed", "third failed"}));
}

TEST_P(ThrowingCallbacks, OneThatHasCalledTheNextDoesNotStopIt) {
  call([this](const std::exception_ptr& error) {
    call(throws("nested"));
    throws("outer")(error);
  });
  run(2);
  EXPECT_EQ(told_, Lines({"outer ended", "nested ended"}));
  EXPECT_EQ(support::group_works(ranks_), "");
}

TEST_P(ThrowingCallbacks, ThrowingFailureHook_StopsNoCallback) {
  std::int64_t value = 1;
  OperationSpec spec = all_reduce(&value, 1, DataType::kInt64, ReduceOp::kSum);
  spec.timeout = InprocRanks::kTimeout;
  spec.failed = [](engine::PerGroupState&, std::uint64_t, const Error&) { GetParam().now(); };
  spec.done = told("failing");
  ranks_.engine(0).submit(ranks_.group(0), std::move(spec));
  ranks_.run_for(std::chrono::milliseconds(1));
  ranks_.engine(0).abort_group(*ranks_.group(0), Error(ErrorKind::kAborted, "enough"));
  ranks_.run_until([&] { return !told_.empty(); });
  EXPECT_EQ(told_, Lines({"failing failed"}));
}

TEST_P(ThrowingCallbacks, AnObserverStopsNoOtherAndNoOperation) {
  Thrower thrower(GetParam().now);
  Counter counter;
  ranks_.engine(0).observers().add(thrower);
  ranks_.engine(0).observers().add(counter);
  OperationSpec spec;
  spec.name = "phased";
  spec.body = [](engine::GroupView& group) -> engine::Task<void> {
    group.enter("its only phase");
    co_return;
  };
  spec.timeout = InprocRanks::kTimeout;
  spec.done = told("observed");
  ranks_.engine(0).submit(ranks_.group(0), std::move(spec));
  ranks_.run_until([&] { return told_.size() == 1; });
  EXPECT_EQ(told_, Lines({"observed ended"}));
  EXPECT_EQ(counter.counts(), std::vector<int>({1, 1, 1, 1}));
  ranks_.engine(0).observers().remove(thrower);
  ranks_.engine(0).observers().remove(counter);
}

INSTANTIATE_TEST_SUITE_P(Of, ThrowingCallbacks, ::testing::ValuesIn(kThrown),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace gtopk
