// Tests of the UCX transport whose peers are known by their cards: messages wait until an address
// comes, in order, or fail and say why it did not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "gtopk/error.hpp"
#include "transport/base/tag.hpp"
#include "transport/ucx/mesh.hpp"

namespace gtopk::test {
namespace {

using gtopk::Error;
using testing::HasSubstr;
using transport::collective_tag;

/// Asked for addresses, it remembers for whom.
struct Asked final : transport::AddressBook {
  void look_up(PeerId peer) override { peers.push_back(peer); }
  std::vector<PeerId> peers;
};

TEST(LateAddress, MessagesToAPeerKnownByItsCardWaitInOrderForItsAddress) {
  Asked asked;
  Mesh mesh(1);
  Mesh other(1);
  mesh[0].use(&asked);
  const PeerId peer = mesh[0].add_peer(other[0].card());
  const PeerId back = other[0].add_peer(mesh[0].address());
  EXPECT_EQ(mesh[0].peer(peer).identity, other[0].self().identity);
  EXPECT_LT(other[0].card().size(), other[0].address().size());
  EXPECT_TRUE(asked.peers.empty());
  EXPECT_FALSE(mesh[0].connected(peer));
  const Tag tag = collective_tag(1, 0, 1, 0);
  std::deque<Message> outs;
  for (unsigned i = 0; i < 20; ++i) {
    outs.emplace_back(pattern(i % 2 == 0 ? 10 : 500'000, i)).send(mesh[0], peer, tag);
  }
  Message early(std::size_t{5});  // received before the address is there
  early.recv(mesh[0], peer, collective_tag(2, 0, 1, 0));
  Message from_there("early");
  from_there.send(other[0], back, collective_tag(2, 0, 1, 0));
  const auto progress = [&] {
    const bool one = mesh.progress();
    return other.progress() || one;
  };
  EXPECT_TRUE(progress_until(progress, [&] { return early.done(); }));
  EXPECT_EQ(early.bytes, "early");
  EXPECT_EQ(asked.peers, std::vector<PeerId>{peer});  // once
  EXPECT_TRUE(mesh[0].connected(peer));               // as good as
  mesh[0].set_address(peer, other[0].address());
  for (unsigned i = 0; i < 20; ++i) {
    const std::string expected = pattern(i % 2 == 0 ? 10 : 500'000, i);
    Message in(expected.size());
    in.recv(other[0], back, tag);
    ASSERT_TRUE(progress_until(progress, [&] { return in.done(); }));
    ASSERT_EQ(in.bytes, expected) << i;
  }
  EXPECT_TRUE(progress_until(
      progress, [&] { return std::ranges::all_of(outs, [](auto& out) { return out.done(); }); }));
  EXPECT_EQ(asked.peers.size(), 1U);
}

TEST(LateAddress, WithoutAnAddressMessagesFailSayWhyAndTheNextOneAsksAgain) {
  Asked asked;
  Mesh mesh(2);
  Mesh other(1);
  mesh[0].use(&asked);
  const PeerId peer = mesh[0].add_peer(other[0].card());
  Message one("one");
  Message in(std::size_t{3});
  Message listening(std::size_t{3});
  listening.request.connects = false;
  listening.recv(mesh[0], peer, collective_tag(1, 1, 2, 0));
  one.send(mesh[0], peer, collective_tag(1, 0, 1, 0));
  in.recv(mesh[0], peer, collective_tag(1, 1, 1, 0));
  mesh[0].no_address(peer, "the store is gone");
  EXPECT_EQ(one.request.status(), Status::kPeerFailed);
  EXPECT_EQ(one.completions, 1);
  EXPECT_EQ(in.request.status(), Status::kPeerFailed);
  EXPECT_FALSE(listening.done());  // the peer may know this rank's address
  EXPECT_THAT(mesh[0].why_unreachable(peer), HasSubstr("the store is gone"));
  EXPECT_FALSE(mesh[0].connected(peer));
  EXPECT_TRUE(mesh[0].take_failures().empty());
  Message two("two");
  two.send(mesh[0], peer, collective_tag(1, 0, 1, 0));
  EXPECT_EQ(asked.peers.size(), 2U);
  // Neither a card nor somebody else's address will do.
  EXPECT_THROW(mesh[0].set_address(peer, other[0].card()), Error);
  EXPECT_THROW(mesh[0].set_address(peer, mesh[1].address()), Error);
  EXPECT_FALSE(two.done());
  mesh[0].give_up(peer);
  EXPECT_EQ(two.request.status(), Status::kPeerFailed);
  EXPECT_TRUE(mesh.until([&] { return listening.done(); }));
  mesh[0].set_address(peer, other[0].address());  // too late
  Message three("three");
  three.send(mesh[0], peer, collective_tag(1, 0, 1, 0));
  EXPECT_EQ(three.request.status(), Status::kPeerFailed);
}

TEST(LateAddress, ClosesWithMessagesThatStillWaitForAnAddress) {
  Mesh mesh(1);
  const Mesh other(1);
  Message out("out");
  const PeerId peer = mesh[0].add_peer(other.transports[0]->card());
  out.send(mesh[0], peer, collective_tag(1, 0, 1, 0));
  mesh[0].close(std::chrono::milliseconds(0));
  EXPECT_EQ(out.completions, 1);
  EXPECT_EQ(out.request.status(), Status::kPeerFailed);
}

}  // namespace
}  // namespace gtopk::test
