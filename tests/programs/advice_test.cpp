// Tests of gtopk-info's advice: each of its rules, and silence where all is well.
#include "tools/programs/info/advice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace gtopk::programs::info {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A machine that needs no advice.
Machine well() {
  return {.name = "a",
          .kernel = "Linux",
          .cores = 4,
          .cores_allowed = 4,
          .memory = 8ULL << 30U,
          .open_files = {1024, 1048576},
          .locked_memory = {UINT64_MAX, UINT64_MAX},
          .shared_memory = 1ULL << 30U,
          .tcp = {.congestion_control = "cubic"},
          .interfaces = {{.name = "lo", .up = true, .loopback = true, .addresses = {"127.0.0.1"}},
                         {.name = "eth0", .up = true, .addresses = {"10.0.0.1"}},
                         {.name = "eth1", .up = false, .addresses = {"10.0.1.1"}},
                         {.name = "ifb0", .up = true}},
          .ucx_libraries = {"/opt/libucp.so.0"},
          .topology = {.source = "hwloc",
                       .cores = {0, 1, 2, 3},
                       .allowed = {0, 1, 2, 3},
                       .nodes = {{.number = 0, .cores = {0, 1, 2, 3}}}}};
}

/// Two nodes, with a NIC each.
Machine two_nodes() {
  Machine machine = well();
  machine.topology.nodes = {{.number = 0, .cores = {0, 1}}, {.number = 1, .cores = {2, 3}}};
  machine.topology.nics = {{.name = "eth0", .near = {0, 1}}, {.name = "eth1", .near = {2, 3}}};
  machine.topology.gpus = {{.name = "GPU 0", .near = {2, 3}}};
  machine.plan = topology::plan(machine.topology, {});
  return machine;
}

TEST(Advice, IsNoneForWhatIsWell) {
  EXPECT_THAT(advice(well()), IsEmpty());
  Machine machine = well();
  machine.environment = {{"UCX_NET_DEVICES", "eth0"},
                         {"UCX_TLS", "tcp,sm,self"},
                         {"GTOPK_LOG_LEVEL", "info"},
                         {"GTOPK_UCX_MAX_RNDV_RAILS", "1"},
                         {"RANK", "0"}};
  machine.rdma_devices = {"mlx5_0"};
  machine.ucx_has_rdma = true;
  EXPECT_THAT(advice(machine), IsEmpty());
}

TEST(Advice, OnInterfacesAsksForOne) {
  Machine machine = well();
  machine.interfaces[2].up = true;
  EXPECT_THAT(advice(machine), ElementsAre(HasSubstr("2 interfaces are up (eth0, eth1)")));
  machine.environment["GTOPK_UCX_NET_DEVICES"] = "eth1";
  EXPECT_THAT(advice(machine), IsEmpty());
  machine.environment["GTOPK_UCX_NET_DEVICES"] = "all";
  EXPECT_THAT(advice(machine), IsEmpty());
}

TEST(Advice, NamesChosenDevicesThatAreMissingOrDown) {
  Machine machine = well();
  machine.rdma_devices = {"mlx5_0"};
  machine.ucx_has_rdma = true;
  machine.environment["UCX_NET_DEVICES"] = "eth0,mlx5_0:1,eth9,eth1";
  EXPECT_THAT(advice(machine), ElementsAre(HasSubstr("names eth9, which does not exist here"),
                                           HasSubstr("names eth1, which is down")));
}

TEST(Advice, OnNicsWithoutAnAddressAndOnThoseNearOtherCores) {
  Machine machine = well();
  machine.interfaces[2] = {.name = "eth1", .up = true, .card = true};
  EXPECT_THAT(advice(machine), ElementsAre(HasSubstr("eth1 is up and has no address")));
  EXPECT_THAT(
      advice(two_nodes()),
      ElementsAre(HasSubstr("this rank's NIC would be eth1 (near the same cores with GPU 0): "
                            "UCX_NET_DEVICES=eth1 chooses it")));
  machine = two_nodes();
  machine.environment["UCX_NET_DEVICES"] = "eth0";
  machine.topology.allowed = {2, 3};
  machine.plan = topology::plan(machine.topology, {.interfaces = {"eth0"}});
  EXPECT_THAT(advice(machine), ElementsAre(HasSubstr("eth0 is near cores 0-1, and this process may "
                                                     "run on 2-3 alone")));
  machine.topology = {.source = "hwloc 2 is not available", .allowed = {0}};
  EXPECT_THAT(advice(machine), ElementsAre(HasSubstr("not bound: hwloc 2 is not available")));
}

TEST(Advice, OnTransports) {
  Machine machine = well();
  machine.environment["UCX_TLS"] = "tcp,self";
  EXPECT_THAT(advice(machine), ElementsAre(HasSubstr("has no shared memory")));
  machine.environment["GTOPK_UCX_TLS"] = "^rc";  // has precedence
  EXPECT_THAT(advice(machine), IsEmpty());
  machine.rdma_devices = {"mlx5_0"};
  machine.ucx_libraries.emplace_back("/usr/lib/libucp.so.0");
  EXPECT_THAT(advice(machine), ElementsAre(HasSubstr("no transport for them"),
                                           HasSubstr("/opt/libucp.so.0, /usr/lib/libucp.so.0")));
}

TEST(Advice, OnLimits) {
  Machine machine = well();
  machine.open_files.hard = 256;
  machine.shared_memory = 64ULL << 20U;
  machine.cores_allowed = 1;
  EXPECT_THAT(advice(machine),
              ElementsAre(HasSubstr("at most 256 open files"), HasSubstr("/dev/shm holds 64 MiB"),
                          HasSubstr("on 1 of 4 cores")));
  machine = well();
  machine.locked_memory.hard = 8 << 20U;
  EXPECT_THAT(advice(machine), IsEmpty());
  machine.rdma_devices = {"mlx5_0"};
  machine.ucx_has_rdma = true;
  EXPECT_THAT(advice(machine), ElementsAre(HasSubstr("locked memory is limited")));
}

TEST(Advice, OnCongestionControlAndVariablesThatNobodyReads) {
  Machine machine = well();
  machine.tcp.congestion_control = "bbr";
  machine.environment["GTOPK_LOGLEVEL"] = "info";
  EXPECT_THAT(advice(machine),
              ElementsAre(AllOf(HasSubstr("is bbr"), HasSubstr("Between sites it is the better")),
                          HasSubstr("GTOPK_LOGLEVEL is set, and gtopk reads no")));
}

TEST(Advice, OnTunnelsWhosePacketsDoNotFitIntoThoseBelow) {
  Machine machine = well();
  machine.environment["UCX_NET_DEVICES"] = "wg0";
  machine.interfaces[1].mtu = 1500;
  machine.interfaces.push_back(
      {.name = "wg0", .up = true, .mtu = 1420, .tunnel = "WireGuard", .addresses = {"10.88.0.1"}});
  EXPECT_THAT(advice(machine), IsEmpty());
  machine.interfaces.back().mtu = 1440;  // all that IPv4 leaves
  EXPECT_THAT(advice(machine), IsEmpty());
  machine.interfaces.back().mtu = 1441;
  EXPECT_THAT(advice(machine), ElementsAre(AllOf(HasSubstr("wg0 is a tunnel (WireGuard)"),
                                                 HasSubstr("an MTU of at most 1420"))));
  machine.interfaces[1].mtu = 9000;
  EXPECT_THAT(advice(machine), IsEmpty());
}

/// A folder like those of /sys/class/net.
std::filesystem::path interface(const char* name, const std::map<std::string, std::string>& files) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / fmt::format("interfaces-{}", getpid()) / name;
  std::filesystem::create_directories(folder);
  for (const auto& [file, text] : files) {
    std::ofstream(folder / file) << text << '\n';
  }
  return folder;
}

TEST(Tunnels, AreKnownByWhatTheKernelSaysOfThem) {
  const std::string none = "INTERFACE=any0\nIFINDEX=3";
  EXPECT_EQ(tunnel_of(interface("eth0", {{"type", "1"}, {"uevent", none}})), "");
  EXPECT_EQ(tunnel_of(interface("lo", {{"type", "772"}, {"uevent", none}})), "");
  EXPECT_EQ(tunnel_of(interface("site", {{"type", "65534"}, {"uevent", "DEVTYPE=wireguard"}})),
            "WireGuard");
  EXPECT_EQ(tunnel_of(interface("wg0", {{"type", "65534"}, {"tun_flags", "0x1001"}})), "WireGuard");
  EXPECT_EQ(tunnel_of(interface("tailscale0", {{"tun_flags", "0x1001"}})), "Tailscale");
  EXPECT_EQ(tunnel_of(interface("tun3", {{"tun_flags", "0x1001"}})), "TUN");
  EXPECT_EQ(tunnel_of(interface("tap3", {{"tun_flags", "0x1002"}})), "TAP");
  EXPECT_EQ(tunnel_of(interface("over", {{"type", "1"}, {"uevent", "DEVTYPE=vxlan"}})), "vxlan");
  EXPECT_EQ(tunnel_of(interface("gre1", {{"type", "778"}, {"uevent", none}})), "IP in IP");
  EXPECT_EQ(tunnel_of(interface("gone", {})), "");
  std::filesystem::remove_all(interface("gone", {}).parent_path());
}

TEST(Advice, OnPortsThatAreNoRangeOrTooFew) {
  Machine machine = well();
  machine.place.local_size = 4;
  for (const char* const enough : {"40000-40003", "1-65535"}) {
    machine.environment["GTOPK_PORTS"] = enough;
    EXPECT_THAT(advice(machine), IsEmpty()) << enough;
  }
  machine.environment["GTOPK_PORTS"] = "40000-40002";
  EXPECT_THAT(advice(machine), ElementsAre(HasSubstr("has 3 ports, and the 4 ranks")));
  machine.environment["GTOPK_PORTS"] = "40000";
  EXPECT_THAT(advice(machine), ElementsAre(HasSubstr("has 1 port, and the 4 ranks")));
  machine.environment["GTOPK_PORTS"] = "40000-40007";
  machine.free_ports = 4;
  EXPECT_THAT(advice(machine), IsEmpty());
  machine.free_ports = 3;
  EXPECT_THAT(advice(machine),
              ElementsAre(HasSubstr("the ports of GTOPK_PORTS=40000-40007 only 3 are free now")));
  machine.free_ports.reset();
  for (const char* const wrong : {"", "0-9", "9-1", "1-65536", "40000-", "a"}) {
    machine.environment["GTOPK_PORTS"] = wrong;
    EXPECT_THAT(advice(machine), ElementsAre(HasSubstr("expected a range of TCP ports"))) << wrong;
  }
}

}  // namespace
}  // namespace gtopk::programs::info
