// Bootstrap: ranks meet over a store that remembers all their earlier runs. Ranks are threads; a
// rank dies by being cut off from the store before one of its calls, and every such moment is
// tried.
#include "src/transport/bootstrap/meeting.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "src/transport/base/tag.hpp"
#include "src/transport/bootstrap/meeting_record.hpp"
#include "src/transport/bootstrap/prefix_store.hpp"
#include "tests/support/memory_store.hpp"

namespace gtopk::meeting {
namespace {

using namespace std::chrono_literals;
using support::Killed;
using support::MemoryStore;
using support::RankStore;
using support::StoreCall;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto kWatchdog = 60s;
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

std::atomic<std::uint64_t> processes{0};

/// A rank as a new process.
Presence born(std::uint32_t rank, std::uint32_t size) {
  const std::uint64_t number = ++processes;
  return {.group = "g",
          .rank = rank,
          .size = size,
          .card = fmt::format("card {}", number),
          .process = fmt::format("host h, pid {}", number),
          .refusal = {}};
}

/// A rank that meets, on a thread of its own.
class Life {
 public:
  struct Options {
    std::size_t dies_before = kNever;        ///< the number of a call to the store
    std::string_view dies_before_key = "-";  ///< or the first set of a key with this prefix
    transport::Duration at_most = kWatchdog;
  };

  Life(const std::shared_ptr<MemoryStore>& store, Presence presence)
      : Life(store, std::move(presence), Options()) {}
  Life(const std::shared_ptr<MemoryStore>& store, Presence presence, Options options)
      : presence_(std::move(presence)), store_(store, [this, options](const StoreCall& call) {
          const bool fatal =
              call.kind == StoreCall::Kind::kSet && call.key.starts_with(options.dies_before_key);
          if (calls == options.dies_before || fatal) {
            throw Killed();
          }
          ++calls;
          if (call.kind == StoreCall::Kind::kFind) {
            arrived = true;  // it looks for the answer
          }
          if (call.kind == StoreCall::Kind::kFind && call.key.starts_with("gtopk/table/")) {
            answered = true;
          }
        }) {
    thread_ = std::jthread([this, options] {
      try {
        roll = meet(store_, presence_, options.at_most);
        met = true;
      } catch (const Error& thrown) {
        error = thrown;
      } catch (const Killed&) {
        died = true;
      }
      ended = true;
    });
  }

  void join() { thread_.join(); }
  void kill() { store_.cut_off(); }
  void wait_for(const std::atomic<bool>& flag) const {
    while (!flag && !ended) {
      std::this_thread::yield();
    }
  }

  [[nodiscard]] const Presence& presence() const { return presence_; }
  std::atomic<bool> arrived{false};   ///< it has said so, and looks whether it is asked
  std::atomic<bool> answered{false};  ///< by a rank 0; it then waits for the table
  std::atomic<bool> ended{false};
  std::atomic<std::size_t> calls{0};
  bool met = false;
  bool died = false;
  Roll roll;
  std::optional<Error> error;

 private:
  Presence presence_;
  RankStore store_;
  std::jthread thread_;
};
using Lives = std::vector<std::unique_ptr<Life>>;

Lives begin_all(const std::shared_ptr<MemoryStore>& store, std::uint32_t size,
                transport::Duration at_most = kWatchdog) {
  Lives lives;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    lives.push_back(
        std::make_unique<Life>(store, born(rank, size), Life::Options{.at_most = at_most}));
  }
  return lives;
}

/// Each of them has met all the others, and nobody else.
void expect_met(const Lives& lives) {
  for (const auto& life : lives) {
    life->join();
  }
  for (const auto& life : lives) {
    ASSERT_TRUE(life->met) << "rank " << life->presence().rank << ": "
                           << (life->error ? life->error->what() : "cut off");
    ASSERT_EQ(life->roll.size(), lives.size());
    for (std::size_t rank = 0; rank < lives.size(); ++rank) {
      EXPECT_EQ(life->roll[rank], lives[rank]->presence().card);
    }
  }
}

TEST(Meeting, EveryRankLearnsEveryCard) {
  for (const std::uint32_t size : {2U, 3U, 8U, 64U}) {
    expect_met(begin_all(std::make_shared<MemoryStore>(), size));
  }
}

TEST(Meeting, RepeatedName_LeavesNoMoreKeysThanFirst) {
  const auto store = std::make_shared<MemoryStore>();
  expect_met(begin_all(store, 3));
  const std::size_t keys = store->keys();
  EXPECT_LE(keys, 2U);  // where the next meeting begins
  for (int round = 0; round < 100; ++round) {
    expect_met(begin_all(store, 3));
  }
  EXPECT_EQ(store->keys(), keys);
}

TEST(Meeting, RanksKilledAtAnyMoment_CanMeetAgain) {
  for (std::uint32_t victim = 0; victim < 3; ++victim) {
    const auto store = std::make_shared<MemoryStore>();
    bool died = true;
    std::size_t moment = 0;
    for (; died; ++moment) {
      Lives lives;
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        lives.push_back(std::make_unique<Life>(
            store, born(rank, 3), Life::Options{.dies_before = rank == victim ? moment : kNever}));
      }
      lives[victim]->join();
      for (const auto& life : lives) {
        life->kill();
      }
      died = lives[victim]->died;
      lives.clear();
      expect_met(begin_all(store, 3));
    }
    EXPECT_GT(moment, 5U);  // arrived, filled the slot, was asked, answered, met
  }
}

TEST(Meeting, GoesOnWithTheNextLifeOfARankThatDiedInTheMiddleOfIt) {
  for (std::size_t moment = 0; moment < 5; ++moment) {
    const auto store = std::make_shared<MemoryStore>();
    Lives lives;
    lives.push_back(std::make_unique<Life>(store, born(0, 3)));
    Life dead(store, born(1, 3), {.dies_before = moment});
    dead.join();
    EXPECT_TRUE(dead.died);
    lives.push_back(std::make_unique<Life>(store, born(1, 3)));
    lives.back()->wait_for(lives.back()->answered);
    lives.push_back(std::make_unique<Life>(store, born(2, 3)));
    expect_met(lives);
  }
}

TEST(Meeting, GoesOnWithTheNextRankZeroWhereverTheFirstDied) {
  bool published = false;
  for (std::size_t moment = 0; !published; ++moment) {
    const auto store = std::make_shared<MemoryStore>();
    Lives lives(3);
    lives[1] = std::make_unique<Life>(store, born(1, 3));
    lives[2] = std::make_unique<Life>(store, born(2, 3));
    Life dead(store, born(0, 3), {.dies_before = moment, .dies_before_key = "gtopk/table/"});
    dead.join();
    EXPECT_TRUE(dead.died);
    published = dead.calls < moment;  // the last moment before the table is published
    lives[0] = std::make_unique<Life>(store, born(0, 3));
    expect_met(lives);
    ASSERT_LT(moment, 100U);
  }
}

TEST(Meeting, DoesNotMindDeadRanksOfAnotherSize) {
  const auto store = std::make_shared<MemoryStore>();
  for (const std::uint32_t size : {5U, 2U, 4U, 3U}) {
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (const std::size_t moment : {std::size_t{1}, std::size_t{3}, std::size_t{4}}) {
        Life dead(store, born(rank, size), {.dies_before = moment});
        dead.join();
      }
    }
    expect_met(begin_all(store, size));
  }
}

/// The error text that all of them got.
std::string common_error(const Lives& lives) {
  std::optional<std::string> text;
  for (const auto& life : lives) {
    life->join();
    if (!life->error) {
      ADD_FAILURE() << "rank " << life->presence().rank << " got no error";
      return "none";
    }
    EXPECT_EQ(text.value_or(life->error->what()), life->error->what());
    text = life->error->what();
  }
  return text.value_or("nobody");
}

TEST(Meeting, LivingRanksOfDifferentSizes_GetOneErrorNamingBoth) {
  for (const std::uint32_t size : {2U, 3U}) {  // rank 0's; the others have 3 and 2
    const auto store = std::make_shared<MemoryStore>();
    Lives lives;
    lives.push_back(std::make_unique<Life>(store, born(0, size)));
    lives.push_back(std::make_unique<Life>(store, born(1, 5 - size)));
    lives.push_back(std::make_unique<Life>(store, born(2, 3)));
    EXPECT_THAT(common_error(lives),
                AllOf(HasSubstr("group 'g'"), HasSubstr(fmt::format("with {} ranks", 5 - size)),
                      HasSubstr(fmt::format("with {}", size)), HasSubstr("rank 0 (host h, pid ")));
  }
}

TEST(Meeting, WithARankThatCannotBeInTheGroupIsTheSameErrorOnAll) {
  for (std::uint32_t refusing = 0; refusing < 3; ++refusing) {
    const auto store = std::make_shared<MemoryStore>();
    Lives lives;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      Presence presence = born(rank, 3);
      if (rank == refusing) {
        presence.refusal = Error(ErrorKind::kUnsupported, "the reason");
      }
      lives.push_back(std::make_unique<Life>(store, presence));
    }
    EXPECT_THAT(common_error(lives), AllOf(HasSubstr("group 'g'"), HasSubstr("the reason")));
    for (const auto& life : lives) {
      EXPECT_EQ(life->error->kind(), ErrorKind::kUnsupported);
    }
    expect_met(begin_all(store, 3));
  }
}

TEST(Meeting, NamesTheRanksThatHaveNotArrivedInTime) {
  const auto store = std::make_shared<MemoryStore>();
  Lives lives;
  lives.push_back(std::make_unique<Life>(store, born(2, 5)));
  lives.back()->wait_for(lives.back()->arrived);
  lives.push_back(std::make_unique<Life>(store, born(0, 5), Life::Options{.at_most = 300ms}));
  EXPECT_THAT(common_error(lives), HasSubstr("ranks 1, 3, 4 of 5 have not arrived"));
  lives.clear();
  lives.push_back(std::make_unique<Life>(store, born(1, 2), Life::Options{.at_most = 50ms}));
  EXPECT_THAT(common_error(lives), HasSubstr("rank 0 has not arrived"));
  expect_met(begin_all(store, 5));
}

TEST(Meeting, TakesOneOfTwoProcessesThatBothCallThemselvesRankOne) {
  const auto store = std::make_shared<MemoryStore>();
  Lives lives;
  for (const std::uint32_t rank : {0U, 1U, 1U}) {
    lives.push_back(std::make_unique<Life>(store, born(rank, 2)));
  }
  lives[0]->join();
  ASSERT_TRUE(lives[0]->met) << lives[0]->error->what();
  const auto has_met = [](const auto& life) { return life->ended && life->met; };
  const auto has_ended = [](const auto& life) { return life->ended.load(); };
  while (std::ranges::none_of(lives.begin() + 1, lives.end(), has_met) &&
         !std::ranges::all_of(lives, has_ended)) {
    std::this_thread::yield();
  }
  for (const std::size_t rival : {1U, 2U}) {
    lives[rival]->kill();
    lives[rival]->join();
  }
  EXPECT_NE(lives[1]->met, lives[2]->met);
  const Life& taken = lives[1]->met ? *lives[1] : *lives[2];
  EXPECT_EQ(lives[0]->roll[1], taken.presence().card);
}

TEST(Meeting, OfTwoGroupsAtOnceFromTwoThreadsOfEachRank) {
  const auto store = std::make_shared<MemoryStore>();
  const auto keys_of = [&](std::string group) {
    return [store, group = std::move(group)](std::uint32_t rank) {
      Presence presence = born(rank, 4);
      presence.group = group;
      return presence;
    };
  };
  for (int round = 0; round < 20; ++round) {
    std::vector<std::vector<Roll>> rolls(2, std::vector<Roll>(4));
    std::vector<std::vector<Presence>> presences(2);
    {
      std::vector<std::jthread> threads;
      for (std::uint32_t group = 0; group < 2; ++group) {
        const std::string name = group == 0 ? "a/" : "b/";
        for (std::uint32_t rank = 0; rank < 4; ++rank) {
          presences[group].push_back(keys_of(name)(rank));
        }
        for (std::uint32_t rank = 0; rank < 4; ++rank) {
          threads.emplace_back([&, group, rank, name] {
            bootstrap::PrefixStore keys(*store, name);
            rolls[group][rank] = meet(keys, presences[group][rank], kWatchdog);
          });
        }
      }
    }
    for (std::uint32_t group = 0; group < 2; ++group) {
      for (const Roll& roll : rolls[group]) {
        ASSERT_EQ(roll.size(), 4U);
        for (std::uint32_t rank = 0; rank < 4; ++rank) {
          EXPECT_EQ(roll[rank], presences[group][rank].card);
        }
      }
    }
  }
}

TEST(MeetingRecord, OfWhichAnyByteIsMissingIsRefused) {
  Answer answer;
  answer.nonce = std::numeric_limits<Nonce>::max();
  answer.presence = born(3, 7);
  answer.presence.refusal = Error(ErrorKind::kMismatch, "12:34");
  const std::string bytes = encode(answer);
  EXPECT_EQ(decode_answer("key", bytes).presence.card, answer.presence.card);
  EXPECT_STREQ(decode_answer("key", bytes).presence.refusal->what(), "12:34");
  Table table;
  table.nonces = {1, 2};
  table.roll = {"a", "b:1"};
  const std::string written = encode(table);
  EXPECT_EQ(decode_table("key", written).roll, table.roll);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(static_cast<void>(decode_answer("key", bytes.substr(0, length))), Error);
  }
  for (std::size_t length = 0; length < written.size(); ++length) {
    EXPECT_THROW(static_cast<void>(decode_table("key", written.substr(0, length))), Error);
  }
}

TEST(MeetingRecord, InvalidOrTooLargeNumber_IsRefusedNamingKey) {
  for (const char* const bytes :
       {"", "1", "1:", "1:x", "2:1x", "1:-", "2:-1", "0:", "20:18446744073709551616", "1:11:1",
        "99999999999999999999:1", "1:1 "}) {
    EXPECT_THROW(static_cast<void>(decode_nonce("key", bytes)), Error) << bytes;
    try {
      static_cast<void>(decode_slot("gtopk/first", bytes));
      ADD_FAILURE() << bytes;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("'gtopk/first'")) << bytes;
    }
  }
  EXPECT_EQ(decode_nonce("key", "20:18446744073709551615"),
            std::numeric_limits<std::uint64_t>::max());
  EXPECT_THROW(static_cast<void>(decode_slot("key", "20:18446744073709551615")), Error);
  std::string ranks = encode(Arrival{.rank = transport::kMaxRanks - 1, .nonce = 1});
  EXPECT_EQ(decode_arrival("key", ranks).rank, transport::kMaxRanks - 1);
  ranks = encode(Arrival{.rank = transport::kMaxRanks, .nonce = 1});
  EXPECT_THROW(static_cast<void>(decode_arrival("key", ranks)), Error);
}

TEST(MeetingRecord, OfAnotherVersionIsAnErrorThatNamesBoth) {
  const auto store = std::make_shared<MemoryStore>();
  Life leader(store, born(0, 2));
  // A rank 1 of another version: it arrives, is asked, and sends an answer that only it can read.
  const Nonce nonce = draw_nonce();
  store->set(arrival_key(store->add(kArrivals, 1)), encode(Arrival{.rank = 1, .nonce = nonce}));
  const Nonce asks = decode_nonce("ping", store->get(ping_key(nonce), kWatchdog));
  const std::string own = std::to_string(nonce);
  store->set(alive_key(asks, nonce), fmt::format("2:77{}:{}what else", own.size(), own));
  leader.join();
  ASSERT_TRUE(leader.error);
  EXPECT_THAT(leader.error->what(),
              AllOf(HasSubstr("rank 1 uses version 77"), HasSubstr("rank 0 uses 2")));
}

}  // namespace
}  // namespace gtopk::meeting
