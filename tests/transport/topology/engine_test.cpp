// Tests of where a process's threads run: the engine's on the cores that GTOPK_BIND names, the
// others and the caller's where they were.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "gtopk/communicator.hpp"
#include "src/transport/topology/cores.hpp"
#include "src/transport/topology/probe.hpp"

namespace gtopk::topology {
namespace {

using testing::HasSubstr;

/// The cores on which the kernel lets each thread run, by thread name.
std::map<std::string, Cores> threads_here() {
  std::map<std::string, Cores> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm") >> std::ws, name);
    std::ifstream status(task.path() / "status");
    constexpr std::string_view kField = "Cpus_allowed_list:\t";
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(kField)) {
        found[name] = cores_from(line.substr(kField.size()));
      }
    }
  }
  return found;
}

std::map<std::string, Cores> threads_with(const std::string& setting, std::string& placement) {
  setenv("GTOPK_BIND", setting.c_str(), 1);
  const auto process = Process::start();
  unsetenv("GTOPK_BIND");
  placement = process->placement();
  return threads_here();
}

TEST(Engine, GtopkBind_PinsOnlyTheEngineThread) {
  const Cores all = allowed_here();
  for (const std::uint32_t core : {all.front(), all.back()}) {
    std::string placement;
    const auto threads = threads_with(std::to_string(core), placement);
    EXPECT_EQ(threads.at("gtopk-engine"), Cores{core});
    EXPECT_EQ(threads.at("gtopk-compute"), all);
    EXPECT_EQ(allowed_here(), all);
    EXPECT_THAT(placement, HasSubstr("set by GTOPK_BIND"));
  }
}

TEST(Engine, RunsWhereTheProcessDoesUnlessThePlanBindsIt) {
  const Cores all = allowed_here();
  for (const char* const setting : {"none", "auto", ""}) {
    std::string placement;
    const auto threads = threads_with(setting, placement);
    EXPECT_TRUE(includes(all, threads.at("gtopk-engine"))) << setting;
    if (placement.starts_with("not bound")) {
      EXPECT_EQ(threads.at("gtopk-engine"), all) << setting;
    }
  }
}

TEST(Engine, IsNotStartedWithNonsense) {
  setenv("GTOPK_BIND", "near", 1);
  EXPECT_THROW(static_cast<void>(Process::start()), Error);
  unsetenv("GTOPK_BIND");
}

}  // namespace
}  // namespace gtopk::topology
