// Tests of the launcher's variables: read if valid, named in the error if not.
#include "gtopk/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "gtopk/error.hpp"

namespace gtopk {
namespace {

class LaunchEnvironmentTest : public testing::Test {
 protected:
  void SetUp() override {
    set("RANK", "2");
    set("WORLD_SIZE", "4");
    set("MASTER_ADDR", "host-a");
    set("MASTER_PORT", "29500");
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }
  static std::string error() {
    try {
      static_cast<void>(launch_environment());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBootstrap);
      return error.what();
    }
    return "no error";
  }
};

TEST_F(LaunchEnvironmentTest, IsReadWhenComplete) {
  const LaunchEnvironment environment = launch_environment();
  EXPECT_EQ(environment.rank, 2U);
  EXPECT_EQ(environment.world_size, 4U);
  EXPECT_EQ(environment.host, "host-a");
  EXPECT_EQ(environment.port, 29500);
}

TEST_F(LaunchEnvironmentTest, TorchrunAgentStore_ShiftsPortByTwo) {
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(launch_environment().port, 29502);
  set("MASTER_PORT", "65535");
  EXPECT_THAT(error(), testing::HasSubstr("MASTER_PORT is '65535': expected a number from 1"));
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  EXPECT_EQ(launch_environment().port, 65535);
}

TEST_F(LaunchEnvironmentTest, NamesTheVariableThatIsMissing) {
  for (const char* const name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    SetUp();
    unsetenv(name);
    EXPECT_THAT(error(), testing::HasSubstr(std::string(name) + " is not set"));
  }
}

TEST_F(LaunchEnvironmentTest, NamesTheVariableThatMakesNoSense) {
  set("RANK", "4");
  EXPECT_THAT(error(), testing::HasSubstr("RANK is '4': expected a number from 0 to 3"));
  set("RANK", "1x");
  EXPECT_THAT(error(), testing::HasSubstr("RANK is '1x'"));
  SetUp();
  set("WORLD_SIZE", "0");
  EXPECT_THAT(error(), testing::HasSubstr("WORLD_SIZE is '0'"));
  SetUp();
  set("MASTER_PORT", "65536");
  EXPECT_THAT(error(), testing::HasSubstr("MASTER_PORT is '65536'"));
}

}  // namespace
}  // namespace gtopk
