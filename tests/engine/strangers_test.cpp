// Engine: messages from outside this process's groups are dropped and counted, whatever their kind
// and size; what a member sends, or may send early, is kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "src/engine/strangers.hpp"
#include "src/transport/base/tag.hpp"
#include "tests/support/calls.hpp"
#include "tests/transport/suite/message.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using test::Message;
using transport::PeerId;
using transport::Tag;

/// Rank 2, which shares only the group of all ranks with the others, sends what it should not.
class Stranger {
 public:
  explicit Stranger(InprocRanks& ranks)
      : ranks_(ranks), target_(port().add_peer(ranks.fabric().port(0).card())) {}

  void send(Tag tag, std::size_t bytes = 8) {
    sent_.emplace_back(std::string(bytes, 'x')).send(port(), target_, tag);
  }
  /// Gives rank 0 time to look at it.
  void settle() {
    ranks_.run_for(10 * engine::Strangers::kPeriod);
    ranks_.settle();
  }
  [[nodiscard]] std::size_t done() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(sent_, [](const Message& message) { return message.done(); }));
  }

 private:
  transport::Transport& port() { return ranks_.fabric().port(2); }

  InprocRanks& ranks_;
  PeerId target_;
  std::deque<Message> sent_;
};

constexpr std::uint32_t kNever = transport::kMaxGroups - 1;  // no group has this number

TEST(Strangers, AnyMessageKind_IsDroppedCountedAndEndsForSender) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{100'000}}) {
    InprocRanks ranks(3);
    Stranger stranger(ranks);
    const std::uint32_t own = ranks.group(0)->id();
    stranger.send(transport::collective_tag(kNever, 1, 0, 0), bytes);
    stranger.send(transport::collective_tag(own, 3, 0, 0), bytes);  // ranks are 0 to 2
    stranger.send(transport::point_to_point_tag(kNever, 1, 7), bytes);
    stranger.send(transport::payload_tag(kNever, 1, 7), bytes);
    stranger.send(transport::control_tag(0x1234), bytes);
    stranger.settle();
    EXPECT_EQ(ranks.engine(0).dropped_of_strangers(), 5U);
    EXPECT_EQ(ranks.engine(1).dropped_of_strangers(), 0U);
    EXPECT_EQ(stranger.done(), 5U);
    EXPECT_EQ(support::group_works(ranks), "");
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(Strangers, AreNotThoseWhoseMessagesAreEarly) {
  InprocRanks ranks(3);
  Stranger stranger(ranks);
  // A group that rank 0 has numbered and that is still meeting, and a member that rank 0 does not
  // know yet.
  const std::uint32_t early = ranks.engine(0).reserve_group_id();
  stranger.send(transport::collective_tag(early, 1, 0, 0));
  stranger.send(transport::control_tag(0x1234));
  // The group of all ranks, and an operation that rank 0 has not called yet.
  stranger.send(transport::collective_tag(ranks.group(0)->id(), 2, 1000, 0));
  stranger.settle();
  EXPECT_EQ(ranks.engine(0).dropped_of_strangers(), 0U);
  EXPECT_TRUE(ranks.fabric().port(0).lies_there(transport::collective_tag(early, 1, 0, 0)));
  EXPECT_TRUE(ranks.fabric().port(0).lies_there(transport::control_tag(0x1234)));
  // The meeting failed: its members' messages are dropped, and only the sender of the notice is
  // reported.
  ranks.engine(0).release_group_id(early);
  stranger.send(transport::collective_tag(early, 1, 0, 0));
  stranger.settle();
  EXPECT_EQ(ranks.engine(0).dropped_of_strangers(), 1U);
  EXPECT_FALSE(ranks.fabric().port(0).lies_there(transport::collective_tag(early, 1, 0, 0)));
  EXPECT_FALSE(ranks.fabric().port(0).lies_there(transport::control_tag(0x1234)));
}

}  // namespace
}  // namespace gtopk
