// Every transport: which peer an address names, and messages to a peer whose address comes late or
// never.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "gtopk/error.hpp"
#include "src/transport/base/tag.hpp"
#include "tests/transport/suite/every_transport.hpp"

namespace gtopk::test {
namespace {

using gtopk::Error;
using testing::HasSubstr;
using transport::collective_tag;

class Addresses : public EveryTransport {};
INSTANTIATE_TEST_SUITE_P(Every, Addresses, testing::ValuesIn(networks()), name_of);

TEST_P(Addresses, NameAPeerThatKeepsItsIdAndTellsWhoItIs) {
  Network& network = begin(3);
  EXPECT_EQ(end(0).add_peer(end(1).card()), id(0, 1));
  EXPECT_NE(id(0, 1), id(0, 2));
  for (std::size_t of = 0; of < network.size(); ++of) {
    EXPECT_EQ(end(0).peer(id(0, of)).identity, end(of).self().identity);
    EXPECT_EQ(end(0).peer(id(0, of)).process, end(of).self().process);
    EXPECT_EQ(end(0).peer(id(0, of)).host, end(of).self().host);
  }
  EXPECT_NE(end(1).self().identity, end(2).self().identity);
}

TEST_P(Addresses, ThatCannotBeReadAreErrors) {
  begin_among_strangers(1);
  const std::string card = end(0).card();
  for (std::size_t length = 0; length < card.size(); ++length) {
    EXPECT_THROW(end(0).add_peer(card.substr(0, length)), Error) << length;
  }
  EXPECT_THROW(end(0).add_peer(card + "x"), Error);
  EXPECT_THROW(end(0).add_peer("tcp:1"), Error);
}

TEST_P(Addresses, SetAddressAndPassiveReceive_MakeNoConnection) {
  begin(2);
  EXPECT_FALSE(end(0).connected(id(0, 1)));
  Message listening(std::size_t{2});
  listening.request.connects = false;
  listening.recv(end(0), id(0, 1), 1);
  network().move();
  EXPECT_FALSE(end(0).connected(id(0, 1)));
  EXPECT_TRUE(listening.pending());
  end(0).cancel(listening.request);
  ASSERT_TRUE(done({&listening}));
  EXPECT_EQ(listening.status(), Status::kCancelled);
}

TEST_P(Addresses, AreNotNeededByAReceiveThatDoesNotConnect) {
  begin(2);
  Message listening(std::size_t{100'000});
  listening.request.connects = false;
  listening.recv(end(0), id(0, 1), 1);
  send(1, 0, 1, pattern(100'000, 1));
  ASSERT_TRUE(done({&listening}));
  EXPECT_TRUE(listening.bytes == pattern(100'000, 1));
}

/// Remembers which peers' addresses were looked up.
struct Asked final : transport::AddressBook {
  void look_up(PeerId peer) override { peers.push_back(peer); }
  std::vector<PeerId> peers;
};

class LateAddress : public EveryTransport {
 protected:
  /// Returns end 0's id of end 1, of which it has the card.
  PeerId begin_with_a_card() {
    begin_among_strangers(3);
    end(0).use(&asked_);
    network().ids = {{0, end(0).add_peer(end(1).card())}, {network().introduce(1, 0)}};
    return id(0, 1);
  }
  Asked asked_;
};
INSTANTIATE_TEST_SUITE_P(Every, LateAddress,
                         testing::ValuesIn(networks_that(&NetworkKind::asks_for_addresses)),
                         name_of);

TEST_P(LateAddress, MessagesToAPeerKnownByItsCardWaitForItInOrder) {
  const PeerId peer = begin_with_a_card();
  EXPECT_EQ(end(0).peer(peer).identity, end(1).self().identity);
  EXPECT_LT(end(1).card().size(), end(1).address().size());
  EXPECT_TRUE(asked_.peers.empty());
  EXPECT_FALSE(end(0).connected(peer));
  const Tag tag = collective_tag(1, 0, 1, 0);
  const auto content = [](unsigned i) { return pattern(i % 2 == 0 ? 10 : 500'000, i); };
  constexpr unsigned kCount = 20;
  for (unsigned i = 0; i < kCount; ++i) {
    send(0, 1, tag, content(i));
  }
  // Received before the address is known.
  const Message& early = recv(0, 1, collective_tag(2, 0, 1, 0), 5);
  send(1, 0, collective_tag(2, 0, 1, 0), "early");
  ASSERT_TRUE(done({&early}));
  EXPECT_EQ(early.bytes, "early");
  EXPECT_EQ(asked_.peers, std::vector<PeerId>{peer});  // looked up once
  EXPECT_TRUE(end(0).connected(peer));                 // counts as connected
  end(0).set_address(peer, end(1).address());
  for (unsigned i = 0; i < kCount; ++i) {
    const Message& in = recv(1, 0, tag, content(i).size());
    ASSERT_TRUE(done({&in}));
    ASSERT_TRUE(in.bytes == content(i)) << i;
  }
  EXPECT_TRUE(all_done());
  EXPECT_EQ(asked_.peers.size(), 1U);
}

TEST_P(LateAddress, NotFound_FailsMessagesWithReasonAndIsAskedAgain) {
  const PeerId peer = begin_with_a_card();
  Message listening(std::size_t{3});
  listening.request.connects = false;
  listening.recv(end(0), peer, collective_tag(1, 1, 2, 0));
  const Message& one = send(0, 1, collective_tag(1, 0, 1, 0), "one");
  const Message& in = recv(0, 1, collective_tag(1, 1, 1, 0), 3);
  end(0).no_address(peer, "the store is gone");
  EXPECT_EQ(one.status(), Status::kPeerFailed);
  EXPECT_EQ(one.completions, 1);
  EXPECT_EQ(in.status(), Status::kPeerFailed);
  EXPECT_TRUE(listening.pending());  // the peer may know this rank's address
  EXPECT_THAT(end(0).why_unreachable(peer), HasSubstr("the store is gone"));
  EXPECT_FALSE(end(0).connected(peer));
  EXPECT_TRUE(end(0).take_failures().empty());
  const Message& two = send(0, 1, collective_tag(1, 0, 1, 0), "two");
  EXPECT_EQ(asked_.peers.size(), 2U);
  // Neither a card nor another peer's address is accepted.
  EXPECT_THROW(end(0).set_address(peer, end(1).card()), Error);
  EXPECT_THROW(end(0).set_address(peer, end(2).address()), Error);
  EXPECT_TRUE(two.pending());
  end(0).give_up(peer);
  EXPECT_EQ(two.status(), Status::kPeerFailed);
  EXPECT_TRUE(done({&listening}));
  end(0).set_address(peer, end(1).address());  // too late
  EXPECT_EQ(send(0, 1, collective_tag(1, 0, 1, 0), "three").status(), Status::kPeerFailed);
}

TEST_P(LateAddress, ThatHasNotComeDoesNotHoldUpAClose) {
  begin_with_a_card();
  const Message& out = send(0, 1, collective_tag(1, 0, 1, 0), "out");
  end(0).close(std::chrono::milliseconds(0));
  EXPECT_EQ(out.completions, 1);
  EXPECT_EQ(out.status(), Status::kPeerFailed);
}

}  // namespace
}  // namespace gtopk::test
