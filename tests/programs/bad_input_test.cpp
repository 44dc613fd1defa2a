// Tests of how the programs answer bad input: one line that names it, exit code 2 for invalid
// arguments and 1 for a failure, nothing on stdout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "src/transport/bootstrap/rendezvous_server.hpp"
#include "tests/programs/started.hpp"

namespace gtopk::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Words = std::vector<std::string>;

struct BadInput {
  const char* program;
  Words arguments;
  int code;
  const char* said;
  Program::Variables environment{};
};

std::vector<BadInput> table() {
  // A different port each time, as they all run at once.
  const auto nobody = [] { return fmt::format("127.0.0.1:{}", free_port()); };
  return {
      {ALLREDUCE, {"--bogus"}, 2, "--bogus"},
      {ALLREDUCE, {"-a", "gtopk,foo"}, 2, "--algorithm has no 'foo'; available: all, gtopk,"},
      {ALLREDUCE, {"--wire", "foo"}, 2, "--wire has no 'foo'"},
      {ALLREDUCE, {"--select", "foo"}, 2, "--select has no 'foo'"},
      {ALLREDUCE, {"--dtype", "int8"}, 2, "--dtype has no 'int8'"},
      {ALLREDUCE, {"--put-back", "foo"}, 2, "--put-back"},
      {ALLREDUCE, {"-a", "gtopk", "--wire", "sign"}, 2, "topk, exact"},
      {ALLREDUCE, {"-k", "5", "--select", "block", "-a", "topk"}, 2, "takes a density and no k"},
      {ALLREDUCE, {"-k", "0"}, 2, "--selected"},
      {ALLREDUCE, {"-k", "5", "--density", "0.1"}, 2, "excludes"},
      {ALLREDUCE, {"--density", "1.5"}, 2, "--density is 1.5: expected one above 0, at most 1"},
      {ALLREDUCE, {"--density", "nan"}, 2, "--density is nan"},
      {ALLREDUCE, {"-b", "5", "-e", "3"}, 2, "sizes go from -b 5 to -e 3"},
      {ALLREDUCE, {"-b", "0"}, 2, "expected 1 <= begin"},
      {ALLREDUCE, {"-f", "1"}, 2, "-f is 1: expected a factor above 1"},
      {ALLREDUCE, {"-n", "0"}, 2, "--steps"},
      {ALLREDUCE, {"-e", "4096G"}, 2, "and this host has"},
      {ALLREDUCE, {"-e", "18446744073709551615"}, 2, "expected at most 2^60"},
      {ALLREDUCE, {"-e", "-1"}, 2, "expected at most 2^60"},
      {ALLREDUCE, {"-e", "64M", "--check"}, 2, "expected at most 4194304"},
      {ALLREDUCE, {"--json", "/nonexistent/x"}, 2, "--json: cannot write '/nonexistent/x'"},
      {ALLREDUCE, {"--rank", "0"}, 2, "--rank and --ranks go together"},
      {ALLREDUCE,
       {"--rank", "2", "--ranks", "2", "--rendezvous", nobody()},
       2,
       "rank 2 of 2 ranks"},
      {ALLREDUCE, {"--rank", "0", "--ranks", "2"}, 2, "--rendezvous HOST:PORT"},
      {ALLREDUCE,
       {"--rank", "0", "--ranks", "2", "--rendezvous", "host"},
       2,
       "'host' is not an address"},
      {ALLREDUCE, {"--rank", "0", "--ranks", "2", "--rendezvous", "host:0"}, 2, "has port 0"},
      {ALLREDUCE, {"--timeout", "-1"}, 2, "--timeout is -1"},
      {ALLREDUCE,
       {},
       2,
       "mpirun says that there are 2 ranks",
       {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}},
      {ALLREDUCE, {}, 1, "the PMIx server does not answer", {{"PMIX_NAMESPACE", "nobody's"}}},
      {ALLREDUCE,
       {},
       1,
       "SLURM_PROCID is 'x'",
       {{"SLURM_JOB_ID", "7"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_STEP_NUM_TASKS", "2"},
        {"SLURM_PROCID", "x"}}},
      {ALLREDUCE, {}, 1, "MASTER_ADDR is not set", {{"RANK", "0"}, {"WORLD_SIZE", "2"}}},
      {ALLREDUCE,
       {"--rank", "1", "--ranks", "2", "--timeout", "0.2", "--rendezvous", nobody()},
       1,
       "rank 1: no connection to the rendezvous"},
      {ALLREDUCE,
       {"--rank", "0", "--ranks", "2", "--timeout", "0.2", "--rendezvous", nobody()},
       1,
       "rank 0: group 'programs': rank 1 of 2 has not arrived in time (0.2 s)"},
      {ALLREDUCE,
       {"-n", "1"},
       1,
       "(ucp_init) with UCX_TLS=foo (GTOPK_UCX_TLS): No such device",
       {{"GTOPK_UCX_TLS", "foo"}, {"UCX_LOG_LEVEL", "fatal"}}},
      {PINGPONG, {}, 2, "1 rank: expected two"},
      {PINGPONG, {"--listen", "70000"}, 2, "--listen"},
      {PINGPONG, {"--listen", "5000", "host:5000"}, 2, "either the address"},
      {PINGPONG, {"host:5000", "--rank", "1", "--ranks", "2"}, 2, "no --rank, --rendezvous"},
      {PINGPONG,
       {"--rank", "0", "--ranks", "3", "--rendezvous", nobody()},
       2,
       "3 ranks: expected two"},
      {PINGPONG, {"--mode", "foo"}, 2, "--mode"},
      {PINGPONG, {"--layer", "foo"}, 2, "--layer has no 'foo'; available: all, messages, calls"},
      {PINGPONG, {"--window", "0"}, 2, "--window"},
      {PINGPONG, {"-e", "4096G"}, 2, "and this host has"},
      {PINGPONG, {"--chunk", "1"}, 2, "--chunk 1 cuts 4194304 bytes into more than 4096 parts"},
      {PINGPONG, {"-m", "disk"}, 2, "--memory"},
      {ALLREDUCE, {"-m", "disk"}, 2, "--memory"},
      {ALLREDUCE,
       {"-m", "cuda"},
       1,
       "--memory cuda: GPU memory needs the GPU's driver, but /nowhere/libcuda.so.1 cannot be "
       "used: ",
       {{"GTOPK_CUDA_DRIVER", "/nowhere/libcuda.so.1"}}},
      {ALLREDUCE,
       {"-m", "cuda"},
       1,
       "the driver cannot start: CUDA_ERROR_NO_DEVICE (100)",
       {{"GTOPK_CUDA_DRIVER", FAKE_GPU}, {"FAKE_DEVICES", "0"}}},
      {ALLREDUCE,
       {"-m", "cuda"},
       1,
       "the CUDA driver libc.so.6 has no cuInit",
       {{"GTOPK_CUDA_DRIVER", "libc.so.6"}}},
      {ALLREDUCE,
       {"-m", "cuda"},
       1,
       "the kernels for GPUs in /nowhere/kernels.so cannot be used: ",
       {{"GTOPK_CUDA_DRIVER", FAKE_GPU}, {"GTOPK_CUDA_KERNELS", "/nowhere/kernels.so"}}},
      {PINGPONG, {nobody(), "--timeout", "0.2"}, 1, "no connection to the rendezvous"},
      {PINGPONG,
       {"--listen", std::to_string(free_port()), "--timeout", "0.2"},
       1,
       "no other rank has come to port"},
  };
}

void expect_one_line(const Ended& ended, const BadInput& bad) {
  EXPECT_EQ(ended.code, bad.code);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, StartsWith("gtopk-"));
  EXPECT_THAT(ended.err, HasSubstr(bad.said));
  EXPECT_EQ(std::ranges::count(ended.err, '\n'), 1) << ended.err;
}

TEST(BadInputs, AreOneLineAndAnExitCode) {
  const std::vector<BadInput> all = table();
  std::vector<Program> programs;  // at once: UCX measures the CPU clock when it is loaded
  for (const BadInput& bad : all) {
    programs.emplace_back(bad.program, bad.arguments, bad.environment);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(fmt::format("{} {}", all[i].program, fmt::join(all[i].arguments, " ")));
    expect_one_line(programs[i].join(), all[i]);
  }
}

TEST(BadInputs, APortInUseIsNamed) {
  const bootstrap::RendezvousListener holder(bootstrap::Endpoint{.host = "", .port = 0});
  const std::string port = std::to_string(holder.port());
  const BadInput bad = {PINGPONG, {"--listen", port}, 1, "Address already in use"};
  Program program(bad.program, bad.arguments);
  expect_one_line(program.join(), bad);
}

TEST(Help, SaysWhatThereIsAndEndsWell) {
  for (const char* const path : {ALLREDUCE, PINGPONG}) {
    const Ended help = Program(path, {"--help"}).join();
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, HasSubstr("--rendezvous"));
    EXPECT_THAT(help.out, HasSubstr("Exit code"));
    const Ended version = Program(path, {"--version"}).join();
    EXPECT_EQ(version.code, 0);
    EXPECT_THAT(version.out, StartsWith("gtopk-"));
  }
}

}  // namespace
}  // namespace gtopk::test
