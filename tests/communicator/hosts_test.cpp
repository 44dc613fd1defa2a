// Communicator: which ranks share a host: those with the same machine and IPC namespace, unless the
// environment or the program names hosts; the same on every rank, and refused on all or none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "gtopk/error.hpp"
#include "src/communicator/host_name.hpp"
#include "tests/communicator/member.hpp"
#include "tests/support/forked_ranks.hpp"

namespace gtopk::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

transport::PeerInfo process_at(const std::string& boot, std::uint64_t ipc, std::uint64_t identity) {
  transport::PeerInfo info;
  info.identity = identity;
  info.place.boot = boot;
  info.place.ipc_namespace = ipc;
  return info;
}

TEST(HostName, IsEqualForOneBootIdAndIpcNamespaceAndNoOthers) {
  const std::string name = host_name(process_at("boot", 7, 1), "");
  EXPECT_EQ(host_name(process_at("boot", 7, 2), ""), name);
  EXPECT_NE(host_name(process_at("boot", 8, 2), ""), name);
  EXPECT_NE(host_name(process_at("other", 7, 2), ""), name);
}

TEST(HostName, OfAProcessThatCannotReadItsPlaceIsItsOwn) {
  EXPECT_NE(host_name(process_at("", 0, 1), ""), host_name(process_at("", 0, 2), ""));
  EXPECT_NE(host_name(process_at("boot", 0, 1), ""), host_name(process_at("boot", 0, 2), ""));
  EXPECT_EQ(host_name(process_at("", 0, 1), "told"), host_name(process_at("boot", 7, 2), "told"));
}

TEST(HostName, ThatWasChosenNeverMeetsOneThatWasRead) {
  const std::string read = host_name(process_at("boot", 7, 1), "");
  EXPECT_NE(host_name(process_at("boot", 7, 1), read), read);
}

TEST(Hosts, RanksOfOneMachineShareOne) {
  run_forked_ranks(3, [](ForkedRank& self) {
    Member member(self);
    EXPECT_THAT(member.group().hosts(), ElementsAre(0, 0, 0));
  });
}

TEST(Hosts, AreThoseThatTheProgramNames) {
  run_forked_ranks(4, [](ForkedRank& self) {
    Member member(self, self.rank() % 3 == 0 ? "outer" : "inner");
    EXPECT_THAT(member.group().hosts(), ElementsAre(0, 1, 1, 0));
  });
}

TEST(Hosts, AreThoseOfTheEnvironmentBeforeAll) {
  run_forked_ranks(4, [](ForkedRank& self) {
    if (self.rank() >= 2) {
      ASSERT_EQ(setenv("GTOPK_HOST", self.rank() == 2 ? "first" : "last", 1), 0);
    }
    Member member(self, "first");
    EXPECT_THAT(member.group().hosts(), ElementsAre(0, 0, 0, 1));
  });
}

TEST(Hosts, OfANameThatIsTooLongAreAnErrorOnEveryRank) {
  run_forked_ranks(2, [](ForkedRank& self) {
    if (self.rank() == 1) {
      ASSERT_EQ(setenv("GTOPK_HOST", std::string(256, 'x').c_str(), 1), 0);
    }
    try {
      const Member member(self);
      FAIL() << "the ranks met";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 (host "), HasSubstr("GTOPK_HOST"),
                                      HasSubstr("at most 255 bytes, seen 256")));
    }
  });
}

}  // namespace
}  // namespace gtopk::test
