// Engine: the thread around one, with one rank: a fabric has one thread.
#include <gtest/gtest.h>

#include <future>
#include <memory>

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
