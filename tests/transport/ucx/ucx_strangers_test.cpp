// UCX: messages from another job, which can reach a process but does not know its key. They must
// fit no receive, whatever their tags, and complete at their sender when they are dropped.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <vector>

#include "gtopk/error.hpp"
#include "src/transport/base/tag.hpp"
#include "src/transport/ucx/address.hpp"
#include "tests/transport/ucx/mesh.hpp"

namespace gtopk::test {
namespace {

/// The card with another key, as in a job that took this process for one of its own.
std::string card_with_another_key(Transport& of, Tag key) {
  transport::UcxAddress address = transport::decode_ucx_address(of.card());
  address.key = key;
  return encode(address);
}

class Strangers : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Transports, Strangers, testing::Values("tcp,self", "tcp,posix,sysv,self"),
                         [](const auto& test) {
                           return std::string(test.param) == "tcp,self" ? "Tcp" : "SharedMemory";
                         });

TEST_P(Strangers, AnyMessageKind_MatchesNoReceiveAndEndsForSender) {
  constexpr std::size_t kHere = 0;
  constexpr std::size_t kMember = 1;
  constexpr std::size_t kStranger = 2;
  UcxNetwork network(3, {.settings = {{"TLS", GetParam()}}});
  network.ids = {{0, network.introduce(kHere, kMember)}, {network.introduce(kMember, kHere)}, {}};
  Transport& here = network[kHere];
  Transport& stranger = network[kStranger];
  const PeerId target = stranger.add_peer(card_with_another_key(here, 0x5eed));
  stranger.set_address(target, here.address());

  const std::array tags = {
      transport::collective_tag(0, 1, 0, 0), transport::point_to_point_tag(0, 1, 0),
      transport::control_tag(network[kMember].self().identity), transport::payload_tag(0, 1, 0)};
  constexpr std::array sizes = {std::size_t{0}, std::size_t{8}, std::size_t{100'000},
                                std::size_t{4} << 20U};
  constexpr std::size_t kCount = tags.size() * sizes.size();
  std::deque<Message> in;
  std::deque<Message> strange;
  for (const Tag tag : tags) {
    for (const std::size_t size : sizes) {
      in.emplace_back(size).recv(here, network.ids[kHere][kMember], tag);
      strange.emplace_back(pattern(size, 1)).send(stranger, target, tag);
    }
  }
  std::size_t dropped = 0;
  ASSERT_TRUE(network.until([&] {
    dropped += here.sift([](Tag) { return false; });
    return dropped == kCount &&
           std::ranges::all_of(strange, [](const Message& message) { return message.done(); });
  }));
  for (const Message& message : in) {
    EXPECT_TRUE(message.pending());
  }

  std::deque<Message> out;
  for (const Tag tag : tags) {
    for (const std::size_t size : sizes) {
      out.emplace_back(pattern(size, 2)).send(network[kMember], network.ids[kMember][kHere], tag);
    }
  }
  ASSERT_TRUE(network.until(
      [&] { return std::ranges::all_of(in, [](const Message& each) { return each.done(); }); }));
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(in[i].status(), Status::kOk);
    EXPECT_TRUE(in[i].bytes == out[i].bytes) << i;
  }
  EXPECT_EQ(here.sift([](Tag) { return false; }), 0U);
}

TEST_P(Strangers, FindNoKeyInAnAddressAndNoOneIsMetWithoutOne) {
  UcxNetwork network(2, {.settings = {{"TLS", GetParam()}}});
  EXPECT_EQ(transport::decode_ucx_address(network[0].address()).key, 0U);
  const Tag key = transport::decode_ucx_address(network[0].card()).key;
  EXPECT_NE(key, 0U);
  EXPECT_NE(key, transport::decode_ucx_address(network[1].card()).key);
  EXPECT_NE(key, network[0].self().identity);
  EXPECT_THROW(network[1].add_peer(network[0].address()), gtopk::Error);
}

}  // namespace
}  // namespace gtopk::test
