// Tests of the plan: a table of ranks on machines that we do not have.
#include "src/transport/topology/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/transport/topology/machines.hpp"

namespace gtopk::topology {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

struct Case {
  const char* machine;
  JobPlace job;
  const char* mask;  ///< of the process; empty: the file's
  const char* gpu;
  const char* nic;
  const char* why_nic;
  const char* engine;  ///< "none": not bound
  int node;            ///< -1: none
  const char* why;
};

std::ostream& operator<<(std::ostream& out, const Case& each) {
  return out << each.machine << ", local rank " << each.job.local_rank << " of "
             << each.job.local_size << " on cores " << each.mask << " by "
             << testing::PrintToString(each.job.interfaces);
}

constexpr const char* kSeveral = "UCX may use several NICs near different cores: UCX_NET_DEVICES=";

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      // Two sockets, a NIC and two GPUs each. A GPU takes the NIC below its switch, or else the one
      // below its host bridge.
      {"two_sockets", {0, 4}, "", "GPU 0", "eth0", "below one PCIe switch", "none", -1, kSeveral},
      {"two_sockets", {1, 4}, "", "GPU 1", "eth0", "below one host bridge", "none", -1, kSeveral},
      {"two_sockets", {2, 4}, "", "GPU 2", "eth1", "below one PCIe switch", "none", -1, kSeveral},
      {"two_sockets", {3, 4}, "", "GPU 3", "eth1", "below one host bridge", "none", -1, kSeveral},
      {"two_sockets", {4, 5}, "", "GPU 0", "eth0", "with GPU 0", "none", -1, kSeveral},
      // Chosen by UCX_NET_DEVICES, by either name: the engine runs near it.
      {"two_sockets",
       {3, 4, {"eth1"}},
       "",
       "GPU 3",
       "eth1",
       "the only one that",
       "8-15",
       1,
       "eth1 is near cores 8-15"},
      {"two_sockets", {0, 4, {"mlx5_1"}}, "", "GPU 0", "eth1", "the only one", "8-15", 1, "eth1"},
      {"two_sockets",
       {0, 4, {"eth0", "eth1"}},
       "",
       "GPU 0",
       "eth0",
       "switch",
       "none",
       -1,
       kSeveral},
      {"two_sockets",
       {0, 4, {"bond0"}},
       "",
       "GPU 0",
       "",
       "the location of bond0 is unknown",
       "none",
       -1,
       "is unknown"},
      // Visible GPUs are numbered from 0, as in CUDA.
      {"two_sockets",
       {1, 2, {}, false, false, {{2, 3}}},
       "",
       "GPU 3",
       "eth1",
       "host bridge",
       "none",
       -1,
       kSeveral},
      {"two_sockets",
       {3, 4, {}, false, false, {{1}}},
       "",
       "GPU 1",
       "eth0",
       "host bridge",
       "none",
       -1,
       kSeveral},
      // No GPU: NICs near the process's cores, dealt out in blocks.
      {"two_sockets",
       {0, 4, {}, false, false, {{}}},
       "",
       "",
       "eth0",
       "local rank 0 of 4",
       "none",
       -1,
       kSeveral},
      {"two_sockets",
       {1, 4, {}, false, false, {{}}},
       "",
       "",
       "eth0",
       "local rank 1 of 4",
       "none",
       -1,
       kSeveral},
      {"two_sockets",
       {2, 4, {}, false, false, {{}}},
       "",
       "",
       "eth1",
       "local rank 2 of 4",
       "none",
       -1,
       kSeveral},
      {"two_sockets",
       {3, 4, {}, false, false, {{}}},
       "",
       "",
       "eth1",
       "those near its cores (eth0, eth1)",
       "none",
       -1,
       kSeveral},
      {"two_sockets",
       {0, 2, {}, false, false, {{9}}},
       "8-15",
       "",
       "eth1",
       "it is near the cores",
       "none",
       -1,
       kSeveral},
      // The process's mask is always respected.
      {"two_sockets",
       {0, 4, {"eth0"}},
       "0-3",
       "GPU 0",
       "eth0",
       "",
       "none",
       -1,
       "eth0 is near cores 0-7, and all cores that this process may use are among them"},
      {"two_sockets", {0, 4, {"eth0"}}, "4-11", "GPU 0", "eth0", "", "4-7", 0, "eth0 is near"},
      {"two_sockets",
       {0, 4, {"eth0"}},
       "7-11",
       "GPU 0",
       "eth0",
       "",
       "none",
       -1,
       "of which this process may use 1: too few to bind to"},
      {"two_sockets",
       {0, 4, {"eth0"}},
       "8-15",
       "GPU 0",
       "eth0",
       "",
       "none",
       -1,
       "eth0 is near cores 0-7, but this process may run only on 8-15"},
      // Ranks that share all cores are not crowded onto fewer cores than ranks.
      {"two_sockets", {0, 8, {"eth0"}}, "", "GPU 0", "eth0", "", "0-7", 0, "eth0"},
      {"two_sockets",
       {0, 9, {"eth0"}},
       "",
       "GPU 0",
       "eth0",
       "",
       "none",
       -1,
       "of which this process may use 8: too few for 9 ranks"},
      // Two GPUs and two NICs below each switch: one NIC each.
      {"dgx", {0, 8}, "", "GPU 0", "ib0", "switch", "none", -1, kSeveral},
      {"dgx", {1, 8}, "", "GPU 1", "ib1", "switch", "none", -1, kSeveral},
      {"dgx", {2, 8}, "", "GPU 2", "ib2", "switch", "none", -1, kSeveral},
      {"dgx", {5, 8}, "", "GPU 5", "ib5", "switch", "none", -1, kSeveral},
      {"dgx", {7, 8}, "", "GPU 7", "ib7", "switch", "none", -1, kSeveral},
      {"dgx", {7, 8, {"mlx5_7"}}, "", "GPU 7", "ib7", "the only one", "8-15", 1, "ib7"},
      {"dgx", {0, 8, {"eth0"}}, "", "GPU 0", "eth0", "the only one", "8-15", 1, "eth0"},
      // All GPUs at one socket, the NIC and few cores at the other.
      {"asymmetric",
       {0, 3},
       "",
       "GPU 0",
       "eth0",
       "the only one",
       "8-11",
       1,
       "eth0 is near cores 8-11"},
      {"asymmetric",
       {0, 5},
       "",
       "GPU 0",
       "eth0",
       "the only one",
       "none",
       -1,
       "of which this process may use 4: too few for 5 ranks"},
      {"asymmetric",
       {0, 3},
       "0-7",
       "GPU 0",
       "eth0",
       "the only one",
       "none",
       -1,
       "may run only on 0-7"},
      {"no_nic", {0, 2}, "", "", "", "no NIC with a known location is up", "none", -1, "no NIC"},
      {"vm", {1, 2}, "", "", "eth0", "the only one", "none", -1, "one NUMA node"},
      {"two_nodes_vm", {0, 2}, "", "", "eth0", "the only one", "none", -1, "all cores that"},
      {"cgroup", {0, 2}, "", "", "eth0", "the only one", "none", -1, "may run only on 8-15"},
      {"four_nodes", {0, 4}, "", "", "eth0", "the only one", "8-11", 2, "eth0 is near cores 8-11"},
      {"four_nodes", {1, 2}, "10-15", "", "eth0", "the only one", "10-11", 2, "eth0"},
  };
  return all;
}

TEST(Plan, PlacesRanksOnMachines) {
  for (const Case& each : cases()) {
    SCOPED_TRACE(testing::PrintToString(each));
    Topology on = machine(each.machine);
    if (*each.mask != '\0') {
      on.allowed = cores_from(each.mask);
    }
    const Plan made = plan(on, each.job);
    EXPECT_EQ(made.gpu, each.gpu);
    EXPECT_EQ(made.nic, each.nic);
    EXPECT_THAT(made.why_nic, HasSubstr(each.why_nic));
    EXPECT_EQ(to_text(made.engine), each.engine);
    EXPECT_EQ(made.node ? static_cast<int>(*made.node) : -1, each.node);
    EXPECT_THAT(made.why, HasSubstr(each.why));
    EXPECT_TRUE(includes(on.allowed, made.engine));
    EXPECT_EQ(made.compute, on.allowed);
  }
}

TEST(Plan, NeverLeavesTheMaskNorTakesOneCoreAlone) {
  for (const char* const name : {"two_sockets", "dgx", "asymmetric", "no_nic", "vm", "cgroup",
                                 "four_nodes", "two_nodes_vm"}) {
    Topology on = machine(name);
    for (std::uint32_t first = 0; first < on.cores.size(); ++first) {
      for (std::uint32_t last = first; last < on.cores.size(); ++last) {
        on.allowed.clear();
        for (std::uint32_t core = first; core <= last; ++core) {
          on.allowed.push_back(core);
        }
        for (const Device& nic : on.nics) {
          const Plan made = plan(on, {.local_size = 2, .interfaces = {nic.name}});
          EXPECT_TRUE(includes(on.allowed, made.engine)) << name << " " << to_text(on.allowed);
          EXPECT_THAT(made.engine, testing::Not(SizeIs(1))) << name << " " << to_text(on.allowed);
          EXPECT_EQ(made.engine.empty(), !made.node.has_value());
        }
      }
    }
  }
}

TEST(Plan, LeavesAloneWhatIsDown) {
  Topology on = machine("two_sockets");
  on.nics[0].up = false;
  const Plan made = plan(on, {.local_rank = 0, .local_size = 4});
  EXPECT_EQ(made.nic, "eth1");
  EXPECT_EQ(to_text(made.engine), "8-15");
}

/// Two sockets with a NIC each, and the networks of both.
Topology with_networks(const std::vector<std::string>& of_eth0,
                       const std::vector<std::string>& of_eth1) {
  Topology on = machine("two_sockets");
  on.nics[0].networks = of_eth0;
  on.nics[1].networks = of_eth1;
  return on;
}

TEST(Plan, TellsUcxTheNicOfEachRankWhereBothLeadToTheSameHosts) {
  const Topology on = with_networks({"10.2.0.0/24", "10.1.0.0/16"}, {"10.1.0.0/16"});
  struct Case {
    JobPlace job;
    const char* devices;
    const char* engine;
    int node;
  };
  for (const Case& each : {Case{{0, 4}, "eth0", "0-7", 0}, Case{{1, 4}, "eth0", "0-7", 0},
                           Case{{2, 4}, "eth1", "8-15", 1}, Case{{3, 4}, "eth1", "8-15", 1},
                           Case{{1, 2, {}, false, false, {{}}}, "eth1", "8-15", 1}}) {
    const Plan made = plan(on, each.job);
    EXPECT_EQ(made.devices, each.devices) << each.job.local_rank;
    EXPECT_EQ(made.why_devices, "eth0, eth1 are all in 10.1.0.0/16");
    EXPECT_EQ(to_text(made.engine), each.engine);
    EXPECT_EQ(made.node, each.node);
  }
}

TEST(Plan, LeavesUcxAloneWhereItCannotBeSureOrTheUserHasChosen) {
  const Topology one = with_networks({"10.1.0.0/16"}, {"10.1.0.0/16"});
  Topology down = one;
  down.nics[1].up = false;
  Topology single = one;
  single.nodes.resize(1);
  const JobPlace told{.interfaces = {"eth0", "eth1"}, .interfaces_set = true};
  struct Case {
    Topology machine;
    JobPlace job;
    const char* why;
  };
  for (const Case& each : std::vector<Case>{
           {machine("two_sockets"), {}, "eth0, eth1 have no known network in common"},
           {with_networks({"10.1.0.0/16"}, {"10.2.0.0/16"}), {}, "may lead to different hosts"},
           {with_networks({"10.1.0.0/16"}, {}), {}, "no known network in common"},
           {one, told, "UCX_NET_DEVICES is set"},
           {one, {.interfaces_set = true}, "UCX_NET_DEVICES is set"},
           {one, {.beyond_tcp = true}, "UCX_TLS is set"},
           {down, {}, "there is no choice"},
           {single, {}, "one NUMA node"},
           {machine("no_nic"), {}, "there is no choice"}}) {
    const Plan made = plan(each.machine, each.job);
    EXPECT_EQ(made.devices, "");
    EXPECT_THAT(made.why_devices, HasSubstr(each.why));
  }
}

TEST(Plan, SaysWhyNothingIsKnown) {
  const Plan made = plan({.source = "hwloc 2 is not available", .allowed = {0, 1}}, {});
  EXPECT_EQ(made.why, "hwloc 2 is not available");
  EXPECT_EQ(made.why_nic, "hwloc 2 is not available");
  EXPECT_EQ(made.why_devices, "hwloc 2 is not available");
  EXPECT_THAT(made.engine, testing::IsEmpty());
}

TEST(Plan, TellsHowNearTwoDevicesAre) {
  const Topology on = machine("two_sockets");
  EXPECT_EQ(nearness(on.nics[0], on.gpus[0]), Nearness::kSwitch);
  EXPECT_EQ(nearness(on.nics[0], on.gpus[1]), Nearness::kHostBridge);
  EXPECT_EQ(nearness(on.nics[0], on.gpus[2]), Nearness::kMachine);
  const Topology two = machine("dgx");
  EXPECT_EQ(nearness(two.nics[0], two.gpus[2]), Nearness::kCores);
}

}  // namespace
}  // namespace gtopk::topology
