// Tests of gtopk-info as a process: what it found is so, in both its forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gtopk/types.hpp"
#include "tests/support/program.hpp"

namespace gtopk::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const Program::Variables kVariables = {
    {"GTOPK_SECRET", "nobody may read this"}, {"UCX_NET_DEVICES", "lo"}, {"GTOPK_NO_SUCH", "1"}};

TEST(Info, TellsTheLibraryTheHostAndTheEnvironment) {
  const Ended ended = Program(INFO, {}, kVariables).join();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, StartsWith("gtopk "));
  for (const auto& choices : {algorithms(), selectors(), wires()}) {
    for (const Choice& each : choices) EXPECT_THAT(ended.out, HasSubstr(each.name));
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

TEST(Info, RefusesWhatItDoesNotKnow) {
  const Ended ended = Program(INFO, {"--doctor"}).join();
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, StartsWith("gtopk-info: "));
}

}  // namespace
}  // namespace gtopk::test
