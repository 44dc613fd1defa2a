// Engine: work that something outside of it does (a device), awaited by an operation.
#include "src/engine/external_work.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gtopk/error.hpp"
#include "src/engine/engine.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/inproc_ranks.hpp"

namespace gtopk {
namespace {

using engine::ExternalWork;
using engine::GroupView;
using engine::Task;
using support::InprocRanks;
using support::SharedEnding;
using testing::HasSubstr;

/// Where work is done, when the test says so.
struct Outside {
  std::vector<ExternalWork::Done> begun;
  int awaited = 0;
};

Task<void> external_work(GroupView& group, Outside& outside, int count) {
  for (int i = 0; i < count; ++i) {
    ExternalWork external_work(
        group, [&](ExternalWork::Done done) { outside.begun.push_back(std::move(done)); });
    co_await external_work;
    ++outside.awaited;
  }
}

/// With a place in the line for the group's links.
Task<void> external_work_in_line(GroupView& group, Outside& outside, bool fails) {
  engine::Turn turn(group);
  if (fails) {
    throw std::runtime_error("for a reason of its own");
  }
  co_await turn;
  ExternalWork external_work(
      group, [&](ExternalWork::Done done) { outside.begun.push_back(std::move(done)); });
  co_await external_work;
  ++outside.awaited;
}

Task<void> short_external_work(GroupView& group, bool& reached) {
  ExternalWork external_work(group, [](const ExternalWork::Done& done) { done(nullptr); });
  co_await external_work;
  reached = true;
}

engine::OperationSpec call(Outside& outside, int count = 1,
                           std::shared_ptr<void> keepalive = nullptr) {
  Collective collective;
  collective.name = "outside";
  collective.body = [&outside, count](GroupView& group) {
    return external_work(group, outside, count);
  };
  engine::OperationSpec spec(std::move(collective));
  spec.keepalive = std::move(keepalive);
  return spec;
}

TEST(ExternalWork, IsAwaitedHoweverLateItEnds) {
  InprocRanks ranks(1);
  Outside outside;
  const SharedEnding ending = ranks.submit(0, call(outside, 2));
  ranks.run_for(std::chrono::seconds(1));
  ASSERT_EQ(outside.begun.size(), 1U);
  EXPECT_EQ(outside.awaited, 0);
  EXPECT_FALSE(ending->ended);
  outside.begun[0](nullptr);
  ranks.run_for(std::chrono::seconds(1));
  ASSERT_EQ(outside.begun.size(), 2U);
  EXPECT_EQ(outside.awaited, 1);
  outside.begun[1](nullptr);
  ranks.run_all();
  EXPECT_TRUE(ending->good()) << ending->text();
  EXPECT_EQ(outside.awaited, 2);
  EXPECT_TRUE(ranks.close().empty());
}

TEST(ExternalWork, MayEndBeforeItIsAwaited) {
  InprocRanks ranks(1);
  bool awaited = false;
  Collective collective;
  collective.name = "outside";
  collective.body = [&](GroupView& group) { return short_external_work(group, awaited); };
  const auto endings = ranks.run([&](std::uint32_t) { return collective; });
  EXPECT_TRUE(endings[0]->good()) << endings[0]->text();
  EXPECT_TRUE(awaited);
}

TEST(ExternalWork, ItsErrorIsTheOperations) {
  InprocRanks ranks(1);
  Outside outside;
  const SharedEnding ending = ranks.submit(0, call(outside));
  ranks.run_for(std::chrono::seconds(1));
  outside.begun.at(0)(std::make_exception_ptr(std::runtime_error("the device has gone")));
  ranks.run_all();
  EXPECT_FALSE(ending->good());
  EXPECT_THAT(ending->text(), HasSubstr("the device has gone"));
  EXPECT_EQ(outside.awaited, 0);
}

TEST(ExternalWork, ThatCannotBeBegunFailsTheOperation) {
  InprocRanks ranks(1);
  Collective collective;
  collective.name = "outside";
  collective.body = [](GroupView& group) -> Task<void> {
    const ExternalWork external_work(
        group, [](const ExternalWork::Done&) { throw std::runtime_error("no device"); });
    return {};
  };
  const auto endings = ranks.run([&](std::uint32_t) { return collective; });
  EXPECT_FALSE(endings[0]->good());
  EXPECT_THAT(endings[0]->text(), HasSubstr("no device"));
  EXPECT_TRUE(ranks.close().empty());
}

TEST(ExternalWork, IsNotOverWhenAnOperationBehindItLeavesTheLine) {
  InprocRanks ranks(1);
  Outside outside;
  std::vector<SharedEnding> endings;
  for (const bool fails : {false, true}) {
    Collective collective;
    collective.name = "outside";
    collective.body = [&outside, fails](GroupView& group) {
      return external_work_in_line(group, outside, fails);
    };
    endings.push_back(ranks.submit(0, engine::OperationSpec(std::move(collective))));
  }
  ranks.run_for(std::chrono::seconds(1));
  EXPECT_TRUE(endings[1]->ended);
  EXPECT_FALSE(endings[1]->good());
  ASSERT_EQ(outside.begun.size(), 1U);
  EXPECT_EQ(outside.awaited, 0);
  EXPECT_FALSE(endings[0]->ended);
  outside.begun[0](nullptr);
  ranks.run_all();
  EXPECT_TRUE(endings[0]->good()) << endings[0]->text();
  EXPECT_EQ(outside.awaited, 1);
}

// The caller has its error in time; what the device still writes is not freed.
TEST(ExternalWork, ATimeOutDoesNotWaitForItAndItsMemoryDoes) {
  InprocRanks ranks(1);
  Outside outside;
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> held = memory;
  const SharedEnding ending = ranks.submit(0, call(outside, 1, std::move(memory)));
  ranks.run_all();
  EXPECT_FALSE(ending->good());
  EXPECT_THAT(ending->text(), HasSubstr("waiting for its device"));
  EXPECT_EQ(ranks.engine(0).under_way(), 1U);
  EXPECT_FALSE(held.expired());
  outside.begun.at(0)(nullptr);
  ranks.settle();
  EXPECT_EQ(ranks.engine(0).under_way(), 0U);
  EXPECT_TRUE(held.expired());
  EXPECT_EQ(outside.awaited, 0);
}

TEST(ExternalWork, MayOutliveTheEngine) {
  Outside outside;
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> held = memory;
  {
    InprocRanks ranks(1);
    const SharedEnding ending = ranks.submit(0, call(outside, 1, std::move(memory)));
    ranks.run_all();
    EXPECT_FALSE(ending->good());
  }
  EXPECT_TRUE(held.expired());
  outside.begun.at(0)(nullptr);
  EXPECT_EQ(outside.awaited, 0);
}

}  // namespace
}  // namespace gtopk
