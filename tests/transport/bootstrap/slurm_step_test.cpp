// Tests of a Slurm step's variables: who is a task of srun's and who is not, host lists, ports.
#include "src/transport/bootstrap/slurm_step.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtopk/launch.hpp"
#include "tests/transport/bootstrap/error_of.hpp"

namespace gtopk::bootstrap {
namespace {

using testing::HasSubstr;

using Environment = std::map<std::string, std::string>;

Variables reader(const Environment& environment) {
  return [&environment](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  };
}

/// What Slurm 22.05 sets for a batch script that asked for 4 tasks.
Environment batch_script() {
  return {{"SLURM_JOB_ID", "17"},   {"SLURM_JOB_NODELIST", "node[01-02]"},
          {"SLURM_NTASKS", "4"},    {"SLURM_NPROCS", "4"},
          {"SLURM_PROCID", "0"},    {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "0"},    {"SLURM_TASKS_PER_NODE", "2(x2)"},
          {"SLURM_GTIDS", "0"},     {"SLURM_NODELIST", "node[01-02]"},
          {"SLURM_TASK_PID", "900"}};
}

/// And for the last task of that job's first step.
Environment task() {
  Environment environment = batch_script();
  for (const auto& [name, value] : Environment{{"SLURM_STEP_ID", "0"},
                                               {"SLURM_STEP_NUM_TASKS", "4"},
                                               {"SLURM_STEP_NODELIST", "node[01-02]"},
                                               {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                                               {"SLURM_PROCID", "3"},
                                               {"SLURM_LOCALID", "1"},
                                               {"SLURM_NODEID", "1"}}) {
    environment[name] = value;
  }
  return environment;
}

Environment with(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) {
    environment[name] = value;
    if (value.empty()) {
      environment.erase(name);
    }
  }
  return environment;
}

TEST(SlurmStep, OfATask_HasItsRankAndTheFirstHost) {
  const auto step = slurm_step(reader(task()));
  ASSERT_TRUE(step);
  EXPECT_EQ(step->rank, 3U);
  EXPECT_EQ(step->size, 4U);
  EXPECT_EQ(step->local_rank, 1U);
  EXPECT_EQ(step->local_size, 2U);
  EXPECT_EQ(step->first_host, "node01");
  EXPECT_EQ(step->description, "Slurm step 17.0");
}

TEST(SlurmStep, OfAProcessThatIsNoTask_IsNone) {
  struct Case {
    const char* what;
    Environment environment;
    const char* why;
  };
  const std::vector<Case> cases = {
      {"outside of Slurm", {}, "SLURM_STEP_ID is not set"},
      {"a batch script's command", batch_script(),
       "it runs in Slurm job 17, but srun did not start it: put srun before the command"},
      {"a batch script's command where the batch step has a number",
       with(task(), {{"SLURM_STEP_ID", "4294967291"}, {"SLURM_PROCID", "0"}}),
       "put srun before the command"},
      {"a shell in salloc's interactive step",
       with(task(), {{"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}}),
       "put srun before the command"},
      {"a shell of salloc's on the login host",
       {{"SLURM_JOB_ID", "17"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_NODELIST", "node[01-02]"}},
       "it runs in Slurm job 17"},
      {"a rank of mpirun, whose helpers srun started",
       with(task(), {{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}}),
       "OMPI_COMM_WORLD_RANK differs"},
      {"a rank of mpirun with its helper's number",
       with(task(), {{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}}), "PMI_RANK differs"},
  };
  for (const Case& each : cases) {
    EXPECT_FALSE(slurm_step(reader(each.environment))) << each.what;
    EXPECT_THAT(why_no_slurm_step(reader(each.environment)), HasSubstr(each.why)) << each.what;
  }
  // srun --mpi=pmi2 numbers tasks in both ways.
  EXPECT_TRUE(slurm_step(reader(with(task(), {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}))));
}

TEST(SlurmStep, WithVariablesThatMakeNoSense_NamesThem) {
  const std::vector<std::pair<Environment, std::string>> cases = {
      {{{"SLURM_PROCID", "4"}}, "SLURM_PROCID is '4': expected a number from 0 to 3"},
      {{{"SLURM_PROCID", "x"}}, "SLURM_PROCID is 'x'"},
      {{{"SLURM_PROCID", ""}}, "SLURM_STEP_ID is set, but SLURM_PROCID is not"},
      {{{"SLURM_STEP_NUM_TASKS", "0"}}, "SLURM_STEP_NUM_TASKS is '0'"},
      {{{"SLURM_STEP_NUM_TASKS", ""}}, "SLURM_STEP_NUM_TASKS is not"},
      {{{"SLURM_STEP_ID", "one"}}, "SLURM_STEP_ID is 'one'"},
      {{{"SLURM_JOB_ID", ""}}, "SLURM_JOB_ID is not"},
  };
  for (const auto& [changes, text] : cases) {
    const Environment environment = with(task(), changes);
    EXPECT_THAT(error_of([&] { static_cast<void>(slurm_step(reader(environment))); }),
                HasSubstr(text));
  }
}

TEST(SlurmStep, OnAHost_HasAsManyTasksAsTheStepPutsThere) {
  const std::vector<std::tuple<std::string, std::string, std::optional<std::uint32_t>>> cases = {
      {"4", "0", 4},           {"4(x2),3", "0", 4},     {"4(x2),3", "1", 4},  {"4(x2),3", "2", 3},
      {"1,2(x10),5", "10", 2}, {"1,2(x10),5", "11", 5}, {"4(x2),3", "3", {}}, {"4(y2)", "0", {}},
      {"", "0", {}},           {"2", "", {}},
  };
  for (const auto& [counts, node, expected] : cases) {
    const auto step = slurm_step(
        reader(with(task(), {{"SLURM_STEP_TASKS_PER_NODE", counts}, {"SLURM_NODEID", node}})));
    ASSERT_TRUE(step);
    EXPECT_EQ(step->local_size, expected) << counts << " at " << node;
  }
  EXPECT_FALSE(slurm_step(reader(with(task(), {{"SLURM_LOCALID", ""}})))->local_rank);
}

TEST(FirstHost, OfAnyList_IsThatOfRankZero) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"vm", "vm"},
      {"a,b", "a"},
      {"node[01-03,7],gpu1", "node01"},
      {"gpu1,node[01-03,7]", "gpu1"},
      {"node[7,01-03]", "node7"},
      {"n[099-101]", "n099"},
      {"rack[2-3]node[05-08]", "rack2node05"},
      {"node[01-03]-ib,login", "node01-ib"},
      {"login-2.site,login-3.site", "login-2.site"},
      {"", ""},
  };
  for (const auto& [hosts, expected] : cases) {
    EXPECT_EQ(first_host(hosts), expected) << hosts;
  }
}

TEST(SlurmStep, BesideOthers_HasAPortOfItsOwn) {
  std::set<std::uint16_t> ports;
  constexpr int kJobs = 100;
  constexpr int kSteps = 100;
  for (int job = 0; job < kJobs; ++job) {
    for (int step = 0; step < kSteps; ++step) {
      const auto found =
          slurm_step(reader(with(task(), {{"SLURM_JOB_ID", std::to_string(4294900000ULL + job)},
                                          {"SLURM_STEP_ID", std::to_string(step)}})));
      EXPECT_GE(found->port, 10000);
      EXPECT_LT(found->port, 29000);
      ports.insert(found->port);
    }
  }
  EXPECT_EQ(ports.size(), kJobs * kSteps);
}

class SlurmLaunch : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE",
                             "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
      unsetenv(name);
    }
    apply(task());
  }
  void TearDown() override {
    for (const auto& [name, value] : task()) {
      unsetenv(name.c_str());
    }
    for (const char* name : {"RANK", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE"}) {
      unsetenv(name);
    }
  }
  static void apply(const Environment& environment) {
    for (const auto& [name, value] : environment) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
};

TEST_F(SlurmLaunch, OfAStepsTask_GoesByTheStep) {
  for (const LaunchEnvironment& found : {launch_environment(), launcher_environment()}) {
    EXPECT_EQ(found.rank, 3U);
    EXPECT_EQ(found.world_size, 4U);
    EXPECT_EQ(found.host, "node01");
    EXPECT_EQ(found.port, slurm_step(reader(task()))->port);
    EXPECT_EQ(found.local_rank, 1U);
    EXPECT_EQ(found.local_world_size, 2U);
    EXPECT_FALSE(found.pmix);
  }
  EXPECT_TRUE(has_launcher());
}

TEST_F(SlurmLaunch, WithAddressOrPortOfTheScript_GoesByThose) {
  setenv("MASTER_ADDR", "10.0.0.1", 1);
  EXPECT_EQ(launch_environment().host, "10.0.0.1");
  setenv("MASTER_PORT", "29600", 1);
  EXPECT_EQ(launch_environment().port, 29600);
  setenv("MASTER_PORT", "x", 1);
  EXPECT_THAT(error_of([] { static_cast<void>(launch_environment()); }),
              HasSubstr("MASTER_PORT is 'x'"));
}

TEST_F(SlurmLaunch, WithoutHosts_AsksForTheAddress) {
  unsetenv("SLURM_STEP_NODELIST");
  EXPECT_THAT(error_of([] { static_cast<void>(launch_environment()); }),
              HasSubstr("Slurm step 17.0 has no SLURM_STEP_NODELIST: set MASTER_ADDR"));
}

TEST_F(SlurmLaunch, WithRankSet_GoesByThat) {
  setenv("RANK", "0", 1);
  EXPECT_THAT(error_of([] { static_cast<void>(launch_environment()); }),
              HasSubstr("WORLD_SIZE is not set"));
  EXPECT_EQ(launcher_environment().rank, 3U);
}

TEST_F(SlurmLaunch, InABatchScript_AsksForSrun) {
  TearDown();
  apply(batch_script());
  EXPECT_FALSE(has_launcher());
  for (const auto& find : {launch_environment, launcher_environment}) {
    EXPECT_THAT(error_of([&] { static_cast<void>(find()); }),
                HasSubstr("it runs in Slurm job 17, but srun did not start it: put srun before"));
  }
}

}  // namespace
}  // namespace gtopk::bootstrap
