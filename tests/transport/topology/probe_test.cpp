// Tests of the probe: what hwloc's files say arrives in the plain value, for this machine too, and
// an invalid file is an error.
#include "src/transport/topology/probe.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "gtopk/error.hpp"
#include "tests/transport/topology/machines.hpp"

namespace gtopk::topology {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::vector<std::string> names(const std::vector<Device>& devices) {
  std::vector<std::string> found;
  for (const Device& each : devices) {
    found.push_back(each.name);
  }
  return found;
}

TEST(Probe, ReadsPackagesNodesNicsAndGpus) {
  const Topology here = machine("two_sockets");
  EXPECT_THAT(here.source, HasSubstr("hwloc 2."));
  EXPECT_EQ(to_text(here.cores), "0-15");
  EXPECT_EQ(to_text(here.allowed), "0-15");
  ASSERT_THAT(here.packages, SizeIs(2));
  EXPECT_EQ(to_text(here.packages[1].cores), "8-15");
  ASSERT_THAT(here.nodes, SizeIs(2));
  EXPECT_EQ(here.nodes[1].number, 1U);
  EXPECT_EQ(here.nodes[1].memory, 64ULL << 30U);
  EXPECT_EQ(to_text(here.nodes[1].cores), "8-15");
  ASSERT_THAT(names(here.nics), ElementsAre("eth0", "eth1"));
  EXPECT_EQ(here.nics[1].rdma, "mlx5_1");
  EXPECT_EQ(here.nics[1].bus, "0000:91:00.0");
  EXPECT_EQ(to_text(here.nics[1].near), "8-15");
  EXPECT_THAT(here.nics[1].bridges, SizeIs(2));
  ASSERT_THAT(names(here.gpus), ElementsAre("GPU 0", "GPU 1", "GPU 2", "GPU 3"));
  EXPECT_EQ(here.gpus[2].bus, "0000:92:00.0");
}

TEST(Probe, TakesABoardsGraphicsForNoGpu) {
  const Topology here = machine("dgx");
  EXPECT_THAT(here.gpus, SizeIs(8));
  EXPECT_THAT(names(here.nics),
              ElementsAre("ib0", "ib1", "ib2", "ib3", "ib4", "ib5", "ib6", "ib7", "eth0"));
}

TEST(Probe, KeepsCoresThatAreNotAllowed) {
  const Topology here = machine("cgroup");
  EXPECT_EQ(to_text(here.cores), "0-15");
  EXPECT_EQ(to_text(here.allowed), "8-15");
  ASSERT_THAT(here.nics, SizeIs(1));
  EXPECT_EQ(to_text(here.nics[0].near), "0-7");
}

TEST(Probe, OfThisMachineKnowsItsCoresAndTheThreadsMask) {
  const Topology here = probe_this_machine();
  EXPECT_GE(here.cores.size(), static_cast<std::size_t>(sysconf(_SC_NPROCESSORS_ONLN)));
  EXPECT_TRUE(includes(here.cores, here.allowed));
  EXPECT_FALSE(here.nodes.empty());
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(here.allowed.back(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(probe_this_machine().allowed, Cores{here.allowed.back()});
    EXPECT_EQ(probe_this_machine().cores, here.cores);
  }).join();
}

TEST(Probe, RefusesWhatIsNoMachine) {
  for (const std::string path : {"/no/such.xml", "/proc/self/status", "/proc/self", "/dev/null"}) {
    try {
      static_cast<void>(probe_file(path));
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(path + " is not an hwloc topology file: "));
    }
  }
}

}  // namespace
}  // namespace gtopk::topology
