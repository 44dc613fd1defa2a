// Tests of a rank's place on its host: with every launcher, and with invalid values.
#include "src/transport/topology/job_place.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace gtopk::topology {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;

using Environment = std::map<std::string, std::string>;

JobPlace place_by(const Environment& environment) {
  return job_place([&](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(JobPlace, IsWhatTheLauncherSays) {
  struct Case {
    Environment environment;
    std::uint32_t rank;
    std::uint32_t size;
  };
  for (const Case& each : std::vector<Case>{
           {{}, 0, 1},
           {{{"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "4"}}, 3, 4},
           {{{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}, 1, 2},
           {{{"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "8"}}, 1, 8},
           {{{"SLURM_STEP_ID", "0"}, {"SLURM_LOCALID", "2"}, {"SLURM_NTASKS_PER_NODE", "4"}}, 2, 4},
           // At least 3.
           {{{"SLURM_STEP_ID", "0"}, {"SLURM_LOCALID", "2"}}, 2, 3},
           // A batch script's command: no task.
           {{{"SLURM_LOCALID", "0"}, {"SLURM_NTASKS_PER_NODE", "4"}}, 0, 1},
           {{{"LOCAL_RANK", "5"}, {"LOCAL_WORLD_SIZE", "many"}}, 5, 6},  // likewise at least
           // Skipped: no number.
           {{{"LOCAL_RANK", "x"}, {"SLURM_STEP_ID", "0"}, {"SLURM_LOCALID", "1"}}, 1, 2},
           {{{"LOCAL_RANK", "-1"}, {"LOCAL_WORLD_SIZE", "4"}}, 0, 1}}) {
    const JobPlace place = place_by(each.environment);
    EXPECT_EQ(place.local_rank, each.rank) << testing::PrintToString(each.environment);
    EXPECT_EQ(place.local_size, each.size) << testing::PrintToString(each.environment);
  }
}

TEST(JobPlace, HasTheInterfacesThatUcxMayUse) {
  EXPECT_THAT(place_by({}).interfaces, IsEmpty());
  EXPECT_THAT(place_by({{"UCX_NET_DEVICES", "eth0,mlx5_0:1"}}).interfaces,
              ElementsAre("eth0", "mlx5_0"));
  EXPECT_THAT(place_by({{"UCX_NET_DEVICES", "eth0"}, {"GTOPK_UCX_NET_DEVICES", "eth1"}}).interfaces,
              ElementsAre("eth1"));
  EXPECT_THAT(place_by({{"UCX_NET_DEVICES", "all"}}).interfaces, IsEmpty());
  EXPECT_THAT(place_by({{"UCX_NET_DEVICES", "^eth0"}}).interfaces, IsEmpty());
}

TEST(JobPlace, UserChosenInterfacesAndNonTcpTransports_AreDetected) {
  EXPECT_FALSE(place_by({}).interfaces_set);
  for (const char* const each : {"eth0", "all", "^eth0"}) {
    EXPECT_TRUE(place_by({{"UCX_NET_DEVICES", each}}).interfaces_set) << each;
    EXPECT_TRUE(place_by({{"GTOPK_UCX_NET_DEVICES", each}}).interfaces_set) << each;
  }
  for (const char* const each : {"tcp,self", "tcp,sm,self", "tcp,posix,sysv,cuda,self"}) {
    EXPECT_FALSE(place_by({{"UCX_TLS", each}}).beyond_tcp) << each;
  }
  EXPECT_FALSE(place_by({}).beyond_tcp);
  for (const char* const each : {"all", "rc,tcp,self", "^cma", "ib"}) {
    EXPECT_TRUE(place_by({{"UCX_TLS", each}}).beyond_tcp) << each;
  }
  EXPECT_FALSE(place_by({{"UCX_TLS", "rc"}, {"GTOPK_UCX_TLS", "tcp"}}).beyond_tcp);
}

TEST(JobPlace, HasTheGpusThatAreVisible) {
  EXPECT_EQ(place_by({}).gpus, std::nullopt);
  EXPECT_THAT(place_by({{"CUDA_VISIBLE_DEVICES", "2,0"}}).gpus, Optional(ElementsAre(2, 0)));
  EXPECT_THAT(place_by({{"CUDA_VISIBLE_DEVICES", ""}}).gpus, Optional(IsEmpty()));
  EXPECT_THAT(place_by({{"CUDA_VISIBLE_DEVICES", "1,-1,0"}}).gpus, Optional(ElementsAre(1)));
  EXPECT_THAT(place_by({{"CUDA_VISIBLE_DEVICES", "GPU-8932f937"}}).gpus, Optional(IsEmpty()));
}

}  // namespace
}  // namespace gtopk::topology
