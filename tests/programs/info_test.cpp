// Tests of gtopk-info as a process: what it reports is true, in both formats; and its doctor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/types.hpp"
#include "src/transport/topology/probe.hpp"
#include "tests/programs/started.hpp"
#include "tests/support/program.hpp"

namespace gtopk::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const Program::Variables kVariables = {
    {"GTOPK_SECRET", "nobody may read this"}, {"UCX_NET_DEVICES", "lo"}, {"GTOPK_NO_SUCH", "1"}};

/// Ranks started by hand, each with a host name; the first `count` of them, each with its variable.
std::vector<Program> started_on(const std::vector<std::string>& hosts,
                                const std::vector<std::string>& arguments, std::size_t count = 99,
                                const Program::Variables& each = {}) {
  const std::string rendezvous = fmt::format("127.0.0.1:{}", free_port());
  std::vector<Program> all;
  for (std::size_t rank = 0; rank < std::min(count, hosts.size()); ++rank) {
    std::vector<std::string> words = {"--rank",       std::to_string(rank),
                                      "--ranks",      std::to_string(hosts.size()),
                                      "--rendezvous", rendezvous};
    words.insert(words.end(), arguments.begin(), arguments.end());
    Program::Variables variables = {{"GTOPK_HOST", hosts[rank]}};
    if (rank < each.size()) {
      variables.push_back(each[rank]);
    }
    all.emplace_back(INFO, words, variables);
  }
  return all;
}

TEST(Info, TellsTheLibraryTheHostAndTheEnvironment) {
  const Ended ended = Program(INFO, {}, kVariables).join();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, StartsWith("gtopk "));
  for (const auto& choices : {algorithms(), selectors(), wires()}) {
    for (const Choice& each : choices) {
      EXPECT_THAT(ended.out, HasSubstr(each.name));
    }
  }
  for (const char* const line :
       {"UCX 1.", "  lo ", "127.0.0.1", "UCX_NET_DEVICES=lo", "GTOPK_SECRET=(set)",
        "  - GTOPK_NO_SUCH is set, and gtopk reads"}) {
    EXPECT_THAT(ended.out, HasSubstr(line));
  }
  EXPECT_THAT(ended.out, Not(HasSubstr("nobody may read this")));
}

TEST(Info, SaysTheSameAsJson) {
  const Ended ended = Program(INFO, {"--json"}, kVariables).join();
  EXPECT_EQ(ended.code, 0) << ended.err;
  const auto record = nlohmann::json::parse(ended.out);
  EXPECT_EQ(record["program"], "gtopk-info");
  EXPECT_EQ(record["cores"], sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_EQ(record["ucx_libraries"].size(), 1);
  EXPECT_EQ(record["environment"]["GTOPK_SECRET"], "(set)");
  EXPECT_EQ(record["algorithms"].size(), algorithms().size());
  EXPECT_FALSE(record["interfaces"].empty());
  EXPECT_THAT(record["advice"].dump(), HasSubstr("GTOPK_NO_SUCH"));
}

TEST(Info, TellsTheTopologyAndThePlan) {
  const Ended ended = Program(INFO, {"--json"}, {{"GTOPK_BIND", "none"}}).join();
  EXPECT_EQ(ended.code, 0) << ended.err;
  const auto record = nlohmann::json::parse(ended.out);
  EXPECT_THAT(record["topology"]["source"].get<std::string>(), HasSubstr("hwloc 2."));
  EXPECT_FALSE(record["topology"]["nodes"].empty());
  EXPECT_EQ(record["topology"]["cores_allowed"].size(), record["cores_allowed"]);
  EXPECT_EQ(record["plan"]["binding"], "not bound: GTOPK_BIND=none");
  EXPECT_TRUE(record["revision"].is_string());
}

TEST(Info, BindsToTheCoresThatItIsTold) {
  const std::string core = std::to_string(topology::allowed_here().back());
  const Ended ended = Program(INFO, {}, {{"GTOPK_BIND", core}}).join();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("engine thread    cores " + core + ": set by GTOPK_BIND"));
}

TEST(Info, RefusesToBindToNonsense) {
  for (const auto& [value, said] : std::vector<std::pair<std::string, std::string>>{
           {"everywhere", "expected auto, none, or a list of cores"},
           {"60000", "this process may run only on cores"}}) {
    const Ended ended = Program(INFO, {}, {{"GTOPK_BIND", value}}).join();
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.err, StartsWith("gtopk-info: GTOPK_BIND is '" + value + "'"));
    EXPECT_THAT(ended.err, HasSubstr(said));
  }
}

TEST(Info, PlansForAnotherMachine) {
  const std::string file = std::string(MACHINES) + "/two_sockets.xml";
  const Program::Variables chosen = {{"UCX_NET_DEVICES", "eth1"}};
  Ended ended = Program(INFO, {"--topology", file}, chosen).join();
  EXPECT_EQ(ended.code, 0) << ended.err;
  for (const char* const line :
       {"  NIC eth0         0000:11:00.0, near cores 0-7, RDMA device mlx5_0\n",
        "  GPU 0            0000:12:00.0, near cores 0-7; eth0 below one PCIe switch\n",
        "plan of local rank 3 of 4\n",
        "  engine thread    cores 8-15, node 1: eth1 is near cores 8-15\n",
        "  UCX              is not told: UCX_NET_DEVICES is set\n"}) {
    EXPECT_THAT(ended.out, HasSubstr(line));
  }
  ended = Program(INFO, {"--topology", file, "--local-ranks", "2", "--json"}).join();
  EXPECT_EQ(ended.code, 0) << ended.err;
  const auto record = nlohmann::json::parse(ended.out);
  ASSERT_EQ(record["plans"].size(), 2U);
  EXPECT_EQ(record["plans"][1]["nic"], "eth0");
  EXPECT_EQ(record["plans"][1]["ucx_net_devices"], "");  // a file knows no addresses
  ended = Program(INFO, {"--topology", "/no/such.xml"}).join();
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, StartsWith("gtopk-info: /no/such.xml is not an hwloc topology file"));
}

TEST(Doctor, TestsEachTwoHosts) {
  // Three hosts by name, the first with two ranks; all ranks are on this machine.
  const auto ended = joined(started_on({"a", "a", "b", "c"}, {"--doctor", "--json"}));
  for (const Ended& one : ended) {
    EXPECT_EQ(one.code, 0) << one.err;
  }
  const auto record = nlohmann::json::parse(ended[0].out);
  EXPECT_EQ(record["program"], "gtopk-info --doctor");
  EXPECT_EQ(record["ranks"], 4);
  ASSERT_EQ(record["hosts"].size(), 3U);
  EXPECT_EQ(record["hosts"][1]["machine"], "b");
  ASSERT_EQ(record["rows"].size(), 4U);  // a-a, a-b, a-c, b-c
  for (const auto& row : record["rows"]) {
    EXPECT_THAT(row["transports"].get<std::string>(), HasSubstr("/")) << row;
    EXPECT_GT(row["latency_seconds"], 0) << row;
    EXPECT_GT(row["bytes_per_second"][0], 0) << row;
    EXPECT_GT(row["bytes_per_second"][1], 0) << row;
  }
  for (std::size_t rank = 1; rank < ended.size(); ++rank) {
    EXPECT_EQ(ended[rank].out, "");
  }
}

TEST(Doctor, PrintsMatrices) {
  const auto ended = joined(started_on({"a", "b"}, {"--doctor"}));
  EXPECT_EQ(ended[0].code, 0) << ended[0].err;
  for (const char* const part : {"gtopk-info --doctor: 2 ranks, 2 hosts", "latency(us)", "bw(GB/s)",
                                 "\ntransports\n    0 - 1   "}) {
    EXPECT_THAT(ended[0].out, HasSubstr(part));
  }
}

TEST(Doctor, NamesRanksThatHaveNotCome) {
  auto programs = started_on({"a", "b", "c"}, {"--doctor", "--timeout", "2"}, 2);
  const auto ended = joined(std::move(programs));
  EXPECT_EQ(ended[0].code, 1) << ended[0].err;
  EXPECT_THAT(ended[0].out, HasSubstr("failed\n  - rank 2 of 3 has not come"));
  EXPECT_THAT(ended[0].out, HasSubstr("\ntransports\n    0 - 1   "));
  EXPECT_EQ(ended[1].code, 0) << ended[1].err;
}

TEST(Doctor, NamesLinksThatDoNotWork) {
  // These two have no transport in common.
  const auto ended = joined(started_on({"a", "b"}, {"--doctor", "--timeout", "60"}, 2,
                                       {{"UCX_TLS", "posix,self"}, {"UCX_TLS", "tcp,self"}}));
  EXPECT_EQ(ended[0].code, 1) << ended[0].out;
  EXPECT_THAT(ended[0].out, HasSubstr("failed\n  - host 0 (a) and host 1 (b), by ranks 0 and 1: "));
  EXPECT_EQ(ended[1].code, 0) << ended[1].err;
}

TEST(Doctor, WantsTwoRanks) {
  const Ended ended = Program(INFO, {"--doctor"}).join();
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, StartsWith("gtopk-info: --doctor tests pairs of ranks, and there is one"));
}

/// On the fake GPU, with this FAKE_DEVICE_KERNEL.
Ended tested_gpus(const std::string& fault, const std::string& timeout = "600") {
  return Program(INFO, {"--gpu", "--timeout", timeout},
                 {{"GTOPK_CUDA_DRIVER", FAKE_GPU},
                  {"GTOPK_CUDA_KERNELS", FAKE_GPU},
                  {"FAKE_DEVICE_KERNEL", fault}})
      .join();
}

TEST(InfoGpu, TestsEveryElementType) {
  const Ended ended = tested_gpus("");
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_THAT(ended.out, ContainsRegex("^GPU 0, a fake, CUDA 13.0.*\n"
                                       "  stream waits: 20 round trips, [0-9.]+ ms\n"));
  for (const char* const type : {"float32", "float64", "bfloat16", "float16"}) {
    EXPECT_THAT(ended.out, ContainsRegex(fmt::format("  {}: [0-9]+ calls, all bits as the CPU's, "
                                                     "[0-9]+ ms\n",
                                                     type)));
  }
}

TEST(InfoGpu, NamesCallsThatAreNotAsOnTheCpu) {
  const Ended ended = tested_gpus("wrong:sketch");
  EXPECT_EQ(ended.code, 1) << ended.err;
  for (const char* const type : {"float32", "float64", "bfloat16", "float16"}) {
    EXPECT_THAT(ended.out,
                ContainsRegex(fmt::format("  {0}: [0-9]+ calls, [0-9]+ of them not as on the CPU, "
                                          "[0-9]+ ms\n    sketch \\(.* of {0}\\): "
                                          "cell 0: expected 0x.*, seen 0x",
                                          type)));
  }
}

TEST(InfoGpu, SurvivesACrash) {
  const Ended ended = tested_gpus("crash:commit");
  EXPECT_EQ(ended.code, 1) << ended.err;
  EXPECT_THAT(ended.out,
              ContainsRegex("\n  float32: the process was ended by signal 6 \\(Aborted\\)\n$"));
}

TEST(InfoGpu, SurvivesAHang) {
  const Ended ended = tested_gpus("hang:commit", "2");
  EXPECT_EQ(ended.code, 1) << ended.err;
  EXPECT_THAT(ended.out, ContainsRegex("\n  float32: not done within 2 s, and was killed\n$"));
}

TEST(InfoGpu, NeedsADriverAndKernels) {
  for (const auto& [driver, kernels, said] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"/nowhere/libcuda.so.1", FAKE_GPU, "/nowhere/libcuda.so.1 cannot be used"},
           {FAKE_GPU, "none", "there are no kernels to test"}}) {
    const Ended ended =
        Program(INFO, {"--gpu"}, {{"GTOPK_CUDA_DRIVER", driver}, {"GTOPK_CUDA_KERNELS", kernels}})
            .join();
    EXPECT_EQ(ended.code, 1) << ended.out;
    EXPECT_THAT(ended.err, StartsWith("gtopk-info: "));
    EXPECT_THAT(ended.err, HasSubstr(said));
  }
}

TEST(Info, RefusesWhatItDoesNotKnow) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--nurse"},
                                             {"--gpu", "--json"},
                                             {"--doctor", "--topology", "a.xml"},
                                             {"--doctor", "--rank", "0"},
                                             {"--topology", "a.xml", "--local-ranks", "2000"}}) {
    const Ended ended = Program(INFO, arguments).join();
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.err, StartsWith("gtopk-info: "));
  }
}

}  // namespace
}  // namespace gtopk::test
