// Engine: the thread around one, with one rank: a fabric has one thread.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/gate.hpp"
#include "src/engine/engine_thread.hpp"
#include "src/transport/inproc/fabric.hpp"
#include "tests/support/calls.hpp"

namespace gtopk {
namespace {

TEST(EngineThread, RunsWhatIsSubmittedAndEndsWithNothingUnderWay) {
  for (int round = 0; round < 10; ++round) {
    transport::inproc::Fabric fabric(1);
    std::promise<void> done;
    std::int64_t value = 5;
    {
      engine::EngineThread thread([&] { return fabric.take_port(0); });
      std::shared_ptr<engine::Group> group;
      thread.call([&] {
        engine::GroupSpec spec;
        spec.cards = {thread.card()};
        spec.ids = {thread.engine().reserve_group_id()};
        group = thread.engine().add_group(std::move(spec));
      });
      EXPECT_THROW(thread.call([] { throw Error(ErrorKind::kInvalidArgument, "thrown there"); }),
                   Error);
      engine::OperationSpec spec = gtopk::all_reduce(&value, 1, DataType::kInt64, ReduceOp::kAvg);
      spec.timeout = std::chrono::seconds(60);
      spec.done = [&](const std::exception_ptr& error) {
        if (error) {
          done.set_exception(error);
        } else {
          done.set_value();
        }
      };
      thread.engine().submit(group, std::move(spec));
      done.get_future().get();
    }
    EXPECT_EQ(value, 5);
  }
}

// Arrivals come from any thread, before, while and after the operation waits.
TEST(EngineThread, MeetsOthersAtAGate) {
  for (int round = 0; round < 50; ++round) {
    transport::inproc::Fabric fabric(1);
    engine::EngineThread thread([&] { return fabric.take_port(0); });
    std::shared_ptr<engine::Group> group;
    thread.call([&] {
      engine::GroupSpec spec;
      spec.cards = {thread.card()};
      spec.ids = {thread.engine().reserve_group_id()};
      group = thread.engine().add_group(std::move(spec));
    });
    const bool happened = round % 2 == 0;
    std::vector<float> tensor = {1, 2, 3};
    SparseOptions options{.k = 1};
    options.gate = std::make_shared<Gate>(3);
    std::promise<void> done;
    engine::OperationSpec spec =
        gtopk::sparse_all_reduce(tensor.data(), nullptr, 3, DataType::kFloat32, options);
    spec.timeout = std::chrono::seconds(60);
    spec.done = [&](const std::exception_ptr& error) {
      if (error) {
        done.set_exception(error);
      } else {
        done.set_value();
      }
    };
    std::jthread other([&] { options.gate->arrive(true); });
    thread.engine().submit(group, std::move(spec));
    if (round % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (happened) {
      options.gate->arrive(true);
    } else {
      options.gate->shut();
    }
    done.get_future().get();
    EXPECT_EQ(std::isnan(tensor[0]), !happened);
    if (happened) {
      EXPECT_EQ(tensor, (std::vector<float>{0, 0, 3}));
    }
  }
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
