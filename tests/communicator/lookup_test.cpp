// Communicator: ranks look up the addresses of the ranks they talk to, and no others. Each rank is
// a process in the sense of this library, with its own UCX and engine; all run in one program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/communicator.hpp"
#include "src/transport/base/tag.hpp"
#include "tests/communicator/member.hpp"
#include "tests/support/memory_store.hpp"

namespace gtopk::test {
namespace {

using support::MemoryStore;
using support::RankStore;
using support::StoreCall;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Le;

/// One rank, and how it uses the store.
struct Seat {
  std::mutex mutex;
  std::set<std::string> looked_up;  ///< guarded by it
  std::atomic<int> calls{0};
  std::atomic<int> sets{0};
  std::atomic<bool> store_fails{false};
  std::chrono::milliseconds store_takes{0};  ///< for the next lookup
  std::shared_ptr<Process> process = Process::start();
  std::unique_ptr<Communicator> group;
  std::optional<Error> error;
};

class Job {
 public:
  explicit Job(std::uint32_t ranks) : seats_(ranks) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  Job(Job&&) = delete;
  Job& operator=(Job&&) = delete;
  ~Job() { leave(); }

  /// All at once, since each waits a little for the others' goodbyes.
  void leave() {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
      threads.emplace_back([this, rank] { leave(rank); });
    }
  }
  void leave(std::size_t rank) {
    seats_[rank].group.reset();
    seats_[rank].process.reset();
  }

  /// All ranks meet as a group of that name; `error` is set if one fails to.
  void meet(const std::string& name, std::vector<std::unique_ptr<Communicator>>* kept = nullptr) {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < seats_.size(); ++rank) {
      threads.emplace_back([this, name, rank] {
        Seat& seat = seats_[rank];
        auto store = std::make_shared<RankStore>(whole_, [&seat](const StoreCall& call) {
          ++seat.calls;
          seat.sets += call.kind == StoreCall::Kind::kSet ? 1 : 0;
          if (!call.key.starts_with("gtopk/address/") || call.kind != StoreCall::Kind::kFind) {
            return;
          }
          {
            const std::lock_guard lock(seat.mutex);
            seat.looked_up.insert(std::string(call.key));
          }
          if (seat.store_fails) {
            throw Error(ErrorKind::kBootstrap, "the store is gone");
          }
          std::promise<void> never;
          never.get_future().wait_for(std::exchange(seat.store_takes, {}));
        });
        try {
          auto group = std::make_unique<Communicator>(
              seat.process, Meeting{.directory = directory_over(store),
                                    .name = name,
                                    .rank = rank,
                                    .size = static_cast<std::uint32_t>(seats_.size()),
                                    .timeout = kWatchdog});
          seat.group = std::move(group);
        } catch (const Error& error) {
          seat.error = error;
        }
      });
    }
    threads.clear();
    if (kept == nullptr) {
      return;
    }
    for (Seat& seat : seats_) {
      kept->push_back(std::move(seat.group));
    }
  }

  std::vector<Ending> all_reduce(const std::string& algorithm) {
    std::vector<std::vector<float>> tensors(seats_.size(), std::vector<float>(1000, 1.0F));
    std::vector<Pending> pending(seats_.size());
    for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
      seats_[rank].group->run(
          gtopk::sparse_all_reduce(tensors[rank].data(), nullptr, 1000, DataType::kFloat32,
                                   {.k = 10, .algorithm = algorithm}),
          pending[rank].call());
    }
    std::vector<Ending> endings;
    for (const Pending& each : pending) {
      endings.push_back(each.wait());
    }
    return endings;
  }

  template <typename Of>
  std::vector<int> each(const Of& of) {
    std::vector<int> numbers;
    for (Seat& seat : seats_) {
      numbers.push_back(of(seat));
    }
    return numbers;
  }

  std::vector<Seat>& seats() { return seats_; }

 private:
  std::shared_ptr<MemoryStore> whole_ = std::make_shared<MemoryStore>();
  std::vector<Seat> seats_;
};

int lookups(Seat& seat) {
  const std::lock_guard lock(seat.mutex);
  return static_cast<int>(seat.looked_up.size());
}
int calls(const Seat& seat) { return seat.calls; }
int sets(const Seat& seat) { return seat.sets; }

// A rank that was greeted first has the other's address already.
TEST(Lookup, EachRankLooksUpThoseItTalksToAndNobodyElse) {
  Job job(8);
  job.meet("first");
  EXPECT_THAT(job.each(lookups), Each(0));
  for (int round = 0; round < 3; ++round) {
    for (const Ending& ending : job.all_reduce("gtopk")) {
      EXPECT_TRUE(ending.good()) << ending.text;
    }
    EXPECT_THAT(job.each(lookups), Each(Le(3)));  // its partners at distance 1, 2 and 4
  }
  std::vector<std::unique_ptr<Communicator>> kept;
  job.meet("second", &kept);
  auto expected = job.each(calls);
  // A leaving rank sets that it has left in the store of either group. It does not read that, as
  // its partners have left.
  for (auto& group : kept) {
    group.reset();
  }
  job.leave();
  for (int& number : expected) {
    number += 2;
  }
  EXPECT_EQ(job.each(calls), expected);
}

TEST(Departure, OfRanksThatAllKnowOneAnotherIsNotToldToTheStore) {
  Job job(2);
  job.meet("group");
  for (const Ending& ending : job.all_reduce("gtopk")) {
    EXPECT_TRUE(ending.good()) << ending.text;
  }
  // A lookup that began before the other rank answered may still come, so calls are not counted.
  const auto expected = job.each(sets);
  job.leave();
  EXPECT_EQ(job.each(sets), expected);
}

TEST(Departure, OfARankThatHasMetNobodyIsSetAndRead) {
  Job job(2);
  job.meet("group");
  const int before = job.seats()[0].calls;
  job.leave(0);
  EXPECT_EQ(job.seats()[0].calls, before + 2);
}

TEST(Lookup, InAStoreThatIsGoneIsAnErrorThatSaysSo) {
  Job job(2);
  job.meet("group");
  for (Seat& seat : job.seats()) {
    seat.store_fails = true;
  }
  for (const Ending& ending : job.all_reduce("gtopk")) {
    EXPECT_EQ(ending.error, ErrorKind::kPeerFailed);
    EXPECT_THAT(ending.text,
                AllOf(HasSubstr("address could not be looked up"), HasSubstr("the store is gone")));
  }
  for (Seat& seat : job.seats()) {
    seat.store_fails = false;
  }
  // A failed rank notifies its peer, and for that looks up its address. The next call may still get
  // the answer to such a lookup, the one after that may not.
  for (const Ending& ending : job.all_reduce("gtopk")) {
    if (!ending.good()) {
      EXPECT_THAT(ending.text, HasSubstr("the store is gone"));
    }
  }
  for (const Ending& ending : job.all_reduce("gtopk")) {
    EXPECT_TRUE(ending.good()) << ending.text;
  }
}

// The hello to the other rank was lost with the first message, and is said again before the next.
TEST(Lookup, ThatFailedIsMadeAgainForTheNextMessage) {
  Job job(2);
  job.meet("group");
  Seat& sender = job.seats()[0];
  std::int64_t value = 1;
  const auto sent = [&] {
    const Pending pending;
    sender.group->run(gtopk::send(Buffer(&value, 1, DataType::kInt64), 1, 5), pending.call());
    return pending.wait();
  };
  sender.store_fails = true;
  EXPECT_EQ(sent().error, ErrorKind::kPeerFailed);
  sender.store_fails = false;
  const Ending ending = sent();
  EXPECT_TRUE(ending.good()) << ending.text;
  std::int64_t received = 0;
  const Pending pending;
  job.seats()[1].group->run(gtopk::recv(Buffer(&received, 1, DataType::kInt64), 0, 5),
                            pending.call());
  EXPECT_TRUE(pending.wait().good());
  EXPECT_EQ(received, 1);
}

// A probe waits 2 s for its answer, from when it could be sent.
TEST(Lookup, ThatTakesLongDoesNotMakeALivingRankSilent) {
  Job job(2);
  job.meet("group");
  Seat& alone = job.seats()[0];
  alone.store_takes = std::chrono::milliseconds(2500);
  double value = 1;
  const Pending pending;
  alone.group->run(gtopk::all_reduce(&value, 1, DataType::kFloat64),
                   pending.call(std::chrono::milliseconds(100)));
  const Ending ending = pending.wait();
  EXPECT_EQ(ending.error, ErrorKind::kTimeout);
  EXPECT_THAT(ending.text, AllOf(HasSubstr("every rank is alive"), HasSubstr("never entered")));
}

TEST(Lookup, OneGroupTooMany_IsSameErrorOnAllAndOthersWorkOn) {
  Job job(3);
  job.meet("works on");
  std::vector<std::unique_ptr<Communicator>> works_on;
  std::vector<std::unique_ptr<Communicator>> alone;
  for (std::uint32_t number = 1; number < transport::kMaxGroups; ++number) {
    alone.push_back(std::make_unique<Communicator>(
        job.seats()[1].process,
        Meeting{.directory = nullptr, .name = "alone", .timeout = kWatchdog}));
  }
  for (Seat& seat : job.seats()) {
    works_on.push_back(std::move(seat.group));
  }
  job.meet("too many");
  for (Seat& seat : job.seats()) {
    ASSERT_TRUE(seat.error.has_value());
    EXPECT_THAT(seat.error->what(), AllOf(HasSubstr("rank 1"), HasSubstr("4096 groups at a time"),
                                          HasSubstr("too many")));
    seat.error.reset();
  }
  alone.clear();
  job.meet("fits again");
  for (const Ending& ending : job.all_reduce("topk")) {
    EXPECT_TRUE(ending.good()) << ending.text;
  }
  for (std::size_t rank = 0; rank < works_on.size(); ++rank) {
    job.seats()[rank].group = std::move(works_on[rank]);
  }
  for (const Ending& ending : job.all_reduce("gtopk-tree")) {
    EXPECT_TRUE(ending.good()) << ending.text;
  }
}

}  // namespace
}  // namespace gtopk::test
