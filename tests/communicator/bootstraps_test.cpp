// Communicator: a group's whole life over every bootstrap, including one that only these tests
// know: meeting, collectives, further groups, an absent rank, leaving. Ranks are threads, each with
// its own UCX and engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gtopk/communicator.hpp"
#include "src/communicator/member_card.hpp"
#include "src/transport/base/tag.hpp"
#include "tests/communicator/bootstraps.hpp"
#include "tests/communicator/member.hpp"
#include "tests/support/held_resources.hpp"

namespace gtopk::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

/// One run of a job: its ranks' processes.
class Job {
 public:
  Job(Bootstrap& bootstrap, std::uint32_t ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      seats_.push_back({.process = Process::start(), .directory = bootstrap.join()});
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  Job(Job&&) = delete;
  Job& operator=(Job&&) = delete;
  /// All at once, since each waits a little for the others' goodbyes.
  ~Job() {
    std::vector<std::jthread> threads;
    for (Seat& seat : seats_) {
      threads.emplace_back([&seat] { seat = Seat(); });
    }
  }

  /// The outcome of a meeting, in the order of `members`.
  struct Met {
    std::vector<std::unique_ptr<Communicator>> groups;
    std::vector<std::optional<Error>> errors;
  };

  /// `members` are ranks of the job; they meet as a group of `size`, ranked by their position in
  /// the list.
  Met meet(const std::string& name, const std::vector<std::uint32_t>& members, std::uint32_t size,
           std::chrono::nanoseconds timeout = kWatchdog) {
    Met met;
    met.groups.resize(members.size());
    met.errors.resize(members.size());
    std::vector<std::jthread> threads;
    for (std::size_t place = 0; place < members.size(); ++place) {
      threads.emplace_back([&, place] {
        const Seat& seat = seats_[members[place]];
        try {
          met.groups[place] = std::make_unique<Communicator>(
              seat.process, Meeting{.directory = seat.directory,
                                    .name = name,
                                    .rank = static_cast<std::uint32_t>(place),
                                    .size = size,
                                    .timeout = timeout});
        } catch (const Error& error) {
          met.errors[place] = error;
        }
      });
    }
    threads.clear();
    return met;
  }

  /// As above, for a meeting that must succeed.
  std::vector<std::unique_ptr<Communicator>> all_meet(const std::string& name,
                                                      const std::vector<std::uint32_t>& members) {
    Met met = meet(name, members, static_cast<std::uint32_t>(members.size()));
    for (const auto& error : met.errors) {
      EXPECT_FALSE(error) << error->what();
    }
    return std::move(met.groups);
  }

  [[nodiscard]] const std::shared_ptr<Process>& process(std::uint32_t rank) const {
    return seats_[rank].process;
  }
  /// The rank, whose groups are gone, leaves.
  void leave(std::uint32_t rank) { seats_[rank] = Seat(); }

 private:
  struct Seat {
    std::shared_ptr<Process> process;
    std::shared_ptr<Directory> directory;
  };
  std::vector<Seat> seats_;
};

/// A dense and a sparse all-reduce on every rank of a group; both results must be right.
void expect_to_work(const std::vector<std::unique_ptr<Communicator>>& groups) {
  const auto ranks = static_cast<float>(groups.size());
  std::vector<float> dense(groups.size());
  std::vector<std::vector<float>> sparse(groups.size(), std::vector<float>(1000, 0.5F));
  std::vector<Pending> ended(2 * groups.size());
  for (std::size_t rank = 0; rank < groups.size(); ++rank) {
    ASSERT_NE(groups[rank], nullptr);
    dense[rank] = 1.0F + static_cast<float>(rank);
    sparse[rank][7] = 2.0F;
    groups[rank]->run(all_reduce(&dense[rank], 1, DataType::kFloat32), ended[2 * rank].call());
    groups[rank]->run(sparse_all_reduce(sparse[rank].data(), nullptr, sparse[rank].size(),
                                        DataType::kFloat32, {.k = 1}),
                      ended[2 * rank + 1].call());
  }
  for (const Pending& each : ended) {
    const Ending ending = each.wait();
    EXPECT_TRUE(ending.good()) << ending.text;
  }
  for (std::size_t rank = 0; rank < groups.size(); ++rank) {
    EXPECT_EQ(dense[rank], ranks * (ranks + 1) / 2);
    EXPECT_EQ(sparse[rank][7], 2 * ranks);
    EXPECT_EQ(sparse[rank][8], 0);
  }
}

class Bootstraps : public testing::TestWithParam<BootstrapKind> {
 protected:
  std::unique_ptr<Bootstrap> bootstrap_ = GetParam().make();
};

INSTANTIATE_TEST_SUITE_P(Every, Bootstraps, testing::ValuesIn(bootstraps()),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(Bootstraps, CarryAJobFromItsFirstMeetingToItsEnd) {
  Job job(*bootstrap_, 4);
  const auto world = job.all_meet("world", {0, 1, 2, 3});
  expect_to_work(world);
  // Two groups at once, with ranks numbered differently than in the job.
  const auto even = job.all_meet("even", {2, 0});
  const auto odd = job.all_meet("odd", {1, 3});
  expect_to_work(even);
  expect_to_work(odd);
  expect_to_work(world);
}

TEST_P(Bootstraps, LetAGroupOfTheSameNameMeetAgainWithOthers) {
  Job job(*bootstrap_, 3);
  expect_to_work(job.all_meet("group", {0, 1, 2}));
  expect_to_work(job.all_meet("group", {2, 1}));
  expect_to_work(job.all_meet("group", {0, 1, 2}));
}

TEST_P(Bootstraps, LetTwoGroupsMeetAtOnce) {
  Job job(*bootstrap_, 4);
  std::vector<std::unique_ptr<Communicator>> left;
  std::vector<std::unique_ptr<Communicator>> right;
  {
    const std::jthread one([&] { left = job.all_meet("left", {0, 1, 2, 3}); });
    const std::jthread other([&] { right = job.all_meet("right", {3, 2, 1, 0}); });
  }
  expect_to_work(left);
  expect_to_work(right);
}

TEST_P(Bootstraps, NameARankThatDoesNotComeToAllThatDo) {
  Job job(*bootstrap_, 3);
  const auto first = job.all_meet("first", {0, 1, 2});
  const Job::Met met = job.meet("late", {0, 1}, 3, 1s);
  for (const auto& error : met.errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->kind(), ErrorKind::kBootstrap);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("'late'"), HasSubstr("rank 2 of 3"),
                                     HasSubstr("has not arrived in time (1 s)")));
  }
  expect_to_work(first);
  expect_to_work(job.all_meet("late", {0, 1, 2}));
}

TEST_P(Bootstraps, TellAllRanksOfOneThatCannotBeInTheGroup) {
  Job job(*bootstrap_, 3);
  const auto works_on = job.all_meet("works on", {0, 1, 2});
  std::vector<std::unique_ptr<Communicator>> alone;
  for (std::uint32_t number = 1; number < transport::kMaxGroups; ++number) {
    alone.push_back(std::make_unique<Communicator>(job.process(1), Meeting{.name = "alone"}));
  }
  const Job::Met met = job.meet("too many", {0, 1, 2}, 3);
  for (const auto& error : met.errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_STREQ(error->what(), met.errors[0]->what());
    EXPECT_THAT(error->what(), AllOf(HasSubstr("'too many'"), HasSubstr("rank 1 (host "),
                                     HasSubstr("4096 groups at a time")));
  }
  expect_to_work(works_on);
  alone.clear();
  expect_to_work(job.all_meet("too many", {0, 1, 2}));
}

TEST_P(Bootstraps, NameARankThatLeftToOneThatNeverTalkedToIt) {
  Job job(*bootstrap_, 3);
  auto world = job.all_meet("world", {0, 1, 2});
  job.process(2)->set_last_words("no such dataset");
  world[2].reset();
  job.leave(2);
  std::vector<std::byte> bytes(8);
  for (const bool sends : {true, false}) {
    const Pending ended;
    world[sends ? 0 : 1]->run(sends ? send(Buffer(bytes.data(), 8, DataType::kUint8), 2, 5)
                                    : recv(Buffer(bytes.data(), 8, DataType::kUint8), 2, 5),
                              ended.call());
    const Ending ending = ended.wait();
    EXPECT_EQ(ending.error, ErrorKind::kPeerFailed);
    EXPECT_THAT(ending.text,
                AllOf(HasSubstr("rank 2 (host "),
                      HasSubstr("has left (it destroyed its process group or exited); its last "
                                "error: no such dataset")));
  }
}

TEST_P(Bootstraps, KeepOneAddressPerProcessOfALifeThatIsOver) {
  const auto live = [this] {
    Job job(*bootstrap_, 3);
    expect_to_work(job.all_meet("world", {0, 1, 2}));
    expect_to_work(job.all_meet("pair", {0, 2}));
  };
  live();
  const HeldResources held;
  const auto entries = bootstrap_->entries();
  live();
  EXPECT_TRUE(holds_no_more_than(held));
  if (entries) {
    EXPECT_EQ(bootstrap_->entries(), *entries + 3);
  }
}

/// A directory that returns the cards it is told to.
class Wrong final : public Directory {
 public:
  explicit Wrong(std::function<std::vector<std::string>(const Presence&)> cards)
      : cards_(std::move(cards)) {}
  void publish(std::string_view /*name*/, std::string_view /*address*/) override {}
  std::optional<std::string> lookup(std::string_view /*name*/,
                                    std::chrono::nanoseconds /*at_most*/) override {
    return std::nullopt;
  }
  std::vector<std::string> meet(const Presence& self,
                                std::chrono::nanoseconds /*at_most*/) override {
    return cards_(self);
  }

 private:
  std::function<std::vector<std::string>(const Presence&)> cards_;
};

TEST(Directory, InvalidCards_AreErrorsThatNameTheCause) {
  const auto process = Process::start();
  const auto error_of = [&](std::function<std::vector<std::string>(const Presence&)> cards) {
    try {
      const Communicator group(process, {.directory = std::make_shared<Wrong>(std::move(cards)),
                                         .name = "g",
                                         .rank = 1,
                                         .size = 3});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBootstrap);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of([](const Presence& self) { return std::vector{self.card, self.card}; }),
              HasSubstr("group 'g': the directory gave 2 cards to rank 1 of 3"));
  EXPECT_THAT(error_of([](const Presence& self) {
                return std::vector{self.card, std::string("other"), self.card};
              }),
              AllOf(HasSubstr("rank 1 (host "), HasSubstr("started with the same rank")));
  EXPECT_THAT(error_of([](const Presence& self) {
                return std::vector{self.card, self.card, self.card.substr(0, 20)};
              }),
              HasSubstr("group 'g': the card of rank 2 was not written by gtopk"));
  EXPECT_THAT(error_of([](const Presence& self) {
                return std::vector{std::string("2:77"), self.card, self.card};
              }),
              HasSubstr("rank 0 has a card of version 77, but rank 1 has one of version 6"));
  EXPECT_THAT(error_of([](const Presence& self) {
                return std::vector{self.card, self.card, self.card + "1:x"};
              }),
              HasSubstr("3 bytes are left over"));
}

TEST(Cards, OfRanksWithDifferentSettingsAreTheSameErrorOnAllRanks) {
  MemberCard card{.identity = 1,
                  .id = 0,
                  .transport = "t",
                  .process = "host a, pid 7",
                  .host = "a",
                  .dense = "auto",
                  .refusal = {}};
  std::vector<std::string> cards{encode(card), encode(card)};
  card.process = "host b, pid 8";
  card.dense = "tree";
  cards.push_back(encode(card));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    try {
      static_cast<void>(read_cards(cards, {.group = "g",
                                           .rank = rank,
                                           .size = 3,
                                           .card = cards[rank],
                                           .process = "",
                                           .refusal = {}}));
      ADD_FAILURE() << "no error on rank " << rank;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
      EXPECT_STREQ(
          error.what(),
          "group 'g': GTOPK_DENSE is 'auto' on rank 0 (host a, pid 7) and 'tree' on rank 2 "
          "(host b, pid 8): set it to the same on all ranks");
    }
  }
  cards.pop_back();
  EXPECT_EQ(
      read_cards(
          cards,
          {.group = "g", .rank = 0, .size = 2, .card = cards[0], .process = "", .refusal = {}})
          .size(),
      2);
}

TEST(Directory, IsWhatMoreThanOneRankNeeds) {
  const auto process = Process::start();
  expect_to_work([&] {
    std::vector<std::unique_ptr<Communicator>> alone;
    alone.push_back(std::make_unique<Communicator>(process, Meeting{.name = "alone"}));
    return alone;
  }());
  try {
    const Communicator group(process, {.name = "g", .size = 2});
    ADD_FAILURE() << "two ranks met nowhere";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("group 'g': 2 ranks need a directory"));
  }
  EXPECT_THROW(static_cast<void>(directory_over(nullptr)), Error);
}

}  // namespace
}  // namespace gtopk::test
