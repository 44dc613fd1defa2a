// Engine: the thread that runs it, with one rank, as a fabric has one thread.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/gate.hpp"
#include "src/engine/engine_thread.hpp"
#include "src/engine/external_work.hpp"
#include "src/engine/lookup.hpp"
#include "tests/support/calls.hpp"
#include "tests/transport/inproc/fabric.hpp"

namespace gtopk {
namespace {

/// An engine on its own thread, with a group of one rank.
class Alone {
 public:
  Alone() {
    thread_.call([this] {
      engine::GroupSpec spec;
      spec.cards = {thread_.card()};
      spec.ids = {thread_.engine().reserve_group_id()};
      group_ = thread_.engine().add_group(std::move(spec));
    });
  }

  [[nodiscard]] engine::EngineThread& thread() { return thread_; }
  [[nodiscard]] const std::shared_ptr<engine::Group>& group() const { return group_; }

  /// The future gets the collective's ending.
  [[nodiscard]] std::future<void> submit(Collective collective) {
    const auto done = std::make_shared<std::promise<void>>();
    engine::OperationSpec spec = std::move(collective);
    spec.timeout = std::chrono::seconds(60);
    spec.done = [done](const std::exception_ptr& error) {
      if (error) {
        done->set_exception(error);
      } else {
        done->set_value();
      }
    };
    thread_.engine().submit(group_, std::move(spec));
    return done->get_future();
  }

 private:
  transport::inproc::Fabric fabric_{1};
  engine::EngineThread thread_{[this] { return fabric_.take_port(0); }};
  std::shared_ptr<engine::Group> group_;
};

TEST(Lookups, Destroyed_AbandonsRunningAndDropsQueuedOnes) {
  std::promise<void> released;
  std::promise<void> done;
  std::promise<void> asked;
  std::atomic<int> heard{0};
  auto queued = std::make_shared<int>();
  const std::weak_ptr<int> dropped = queued;
  {
    engine::Lookups lookups;
    const auto found = [&](const engine::PeerRecord&, const std::string&) { ++heard; };
    lookups.run(
        [&](const std::stop_token& stop) {
          asked.set_value();
          released.get_future().wait();
          EXPECT_TRUE(stop.stop_requested());
          done.set_value();
          return engine::PeerRecord{};
        },
        found);
    lookups.run(
        [queued = std::move(queued)](const std::stop_token&) { return engine::PeerRecord{}; },
        found);
    asked.get_future().wait();
  }
  EXPECT_TRUE(dropped.expired());
  released.set_value();
  done.get_future().wait();
  EXPECT_EQ(heard, 0);
}

TEST(EngineThread, RunsWhatIsSubmittedAndEndsWithNothingUnderWay) {
  for (int round = 0; round < 10; ++round) {
    std::int64_t value = 5;
    {
      Alone alone;
      EXPECT_THROW(
          alone.thread().call([] { throw Error(ErrorKind::kInvalidArgument, "thrown there"); }),
          Error);
      alone.submit(gtopk::all_reduce(&value, 1, DataType::kInt64, ReduceOp::kAvg)).get();
    }
    EXPECT_EQ(value, 5);
  }
}

engine::Task<void> one_external_work(engine::GroupView& group,
                                     std::promise<engine::ExternalWork::Done>& begun,
                                     int& awaited) {
  engine::ExternalWork external_work(
      group, [&](engine::ExternalWork::Done done) { begun.set_value(std::move(done)); });
  co_await external_work;
  ++awaited;
}

// Also when the engine is about to end.
TEST(EngineThread, IsToldOfItsEndByAnyThread) {
  for (int round = 0; round < 50; ++round) {
    std::promise<engine::ExternalWork::Done> begun;
    int awaited = 0;
    Collective collective;
    collective.name = "outside";
    collective.body = [&](engine::GroupView& group) {
      return one_external_work(group, begun, awaited);
    };
    std::jthread other;
    Alone alone;
    std::future<void> done = alone.submit(collective);
    engine::ExternalWork::Done tell = begun.get_future().get();
    other = std::jthread([tell = std::move(tell)] { tell(nullptr); });
    if (round % 2 == 0) {
      done.get();
      EXPECT_EQ(awaited, 1);
    }
  }
}

// Arrivals come from any thread, before, while and after the operation waits.
TEST(EngineThread, MeetsOthersAtAGate) {
  for (int round = 0; round < 50; ++round) {
    Alone alone;
    const bool happened = round % 2 == 0;
    std::vector<float> tensor = {1, 2, 3};
    SparseOptions options{.k = 1};
    options.gate = std::make_shared<Gate>(3);
    std::jthread other([&] { options.gate->arrive(true); });
    std::future<void> done = alone.submit(
        gtopk::sparse_all_reduce(tensor.data(), nullptr, 3, DataType::kFloat32, options));
    // Ensures that it has started.
    if (round % 3 == 0) {
      alone.thread().call([] {});
    }
    if (happened) {
      options.gate->arrive(true);
    } else {
      options.gate->shut();
    }
    done.get();
    EXPECT_EQ(std::isnan(tensor[0]), !happened);
    if (happened) {
      EXPECT_EQ(tensor, (std::vector<float>{0, 0, 3}));
    }
  }
}

// As of a backward that broke off.
TEST(EngineThread, WaitsAtTheEndOfAGroupForNoGateThatMissesParts) {
  for (const bool decided : {false, true}) {
    Alone alone;
    alone.thread().patience = std::chrono::hours(1);
    std::vector<float> tensor = {1, 2, 3};
    SparseOptions options{.k = 1};
    options.gate = std::make_shared<Gate>(2);
    std::future<void> done = alone.submit(
        gtopk::sparse_all_reduce(tensor.data(), nullptr, 3, DataType::kFloat32, options));
    alone.thread().call([] {});  // it has started
    if (decided) {
      options.gate->arrive(true);
    }
    alone.thread().let_end(alone.group());
    alone.thread().call([&] { alone.thread().engine().remove_group(*alone.group()); });
    if (decided) {
      done.get();
      EXPECT_EQ(tensor, (std::vector<float>{0, 0, 3}));
    } else {
      EXPECT_THROW(done.get(), Error);
    }
  }
}

// With peers that stay, destroying the last group would otherwise take the time twice.
TEST(EngineThread, MessageWaitedForInVain_SkipsGoodbyeWait) {
  const std::vector<std::byte> unreceived(100'000);
  transport::inproc::Fabric fabric(2);
  {
    engine::EngineThread thread([&] { return fabric.take_port(0); });
    thread.patience = std::chrono::milliseconds(50);
    std::shared_ptr<engine::Group> group;
    thread.call([&] {
      engine::GroupSpec spec;
      spec.cards = {thread.card(), fabric.port(1).card()};
      spec.ids = {thread.engine().reserve_group_id(), 0};
      group = thread.engine().add_group(std::move(spec));
    });
    engine::OperationSpec spec = gtopk::send(unreceived, 1, 7);
    spec.timeout = std::chrono::seconds(60);
    thread.engine().submit(group, std::move(spec));
    thread.let_end(group);
    thread.patience = std::chrono::hours(1);
    thread.call([&] {
      thread.engine().remove_group(*group);
      fabric.port(0).give_up(group->peer(1));  // as if its payload had been discarded
    });
  }
  SUCCEED();
}

TEST(EngineThread, PassesOnWhyItsTransportCannotBeMade) {
  const auto make = []() -> std::unique_ptr<transport::Transport> {
    throw Error(ErrorKind::kTransport, "no network here");
  };
  try {
    const engine::EngineThread thread(make);
    FAIL() << "made without a transport";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no network here");
  }
}

}  // namespace
}  // namespace gtopk
