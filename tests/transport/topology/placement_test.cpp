// Tests of GTOPK_BIND, and of the binding of a thread.
#include "src/transport/topology/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/transport/topology/probe.hpp"

namespace gtopk::topology {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const Cores kAllowed = {0, 1, 2, 3};

TEST(BindSetting, IsAutoNoneOrCores) {
  EXPECT_EQ(bind_setting("", kAllowed).mode, BindSetting::Mode::kAuto);
  EXPECT_EQ(bind_setting("auto", kAllowed).mode, BindSetting::Mode::kAuto);
  EXPECT_EQ(bind_setting("none", kAllowed).mode, BindSetting::Mode::kNone);
  const BindSetting two = bind_setting("1,3", kAllowed);
  EXPECT_EQ(two.mode, BindSetting::Mode::kCores);
  EXPECT_EQ(two.cores, (Cores{1, 3}));
}

TEST(BindSetting, IsAnErrorForNonsenseAndForCoresOfOthers) {
  const auto error_of = [](const char* text) -> std::string {
    try {
      static_cast<void>(bind_setting(text, kAllowed));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "";
  };
  for (const char* const text : {"Auto", "node", "0-", "1;2", " 1", "0x3"}) {
    EXPECT_THAT(error_of(text), HasSubstr("GTOPK_BIND is '" + std::string(text) +
                                          "': expected auto, none, or a list of cores"));
  }
  EXPECT_THAT(error_of("2-4"), HasSubstr("GTOPK_BIND is '2-4', but this process may run only on "
                                         "cores 0-3"));
}

TEST(Placement, FollowsTheUserBeforeThePlan) {
  const Plan plan{.engine = {0, 1}, .node = 0, .why = "eth0 is near cores 0-1"};
  EXPECT_EQ(placement(bind_setting("", kAllowed), plan).text,
            "cores 0-1, node 0: eth0 is near cores 0-1");
  EXPECT_EQ(placement(bind_setting("none", kAllowed), plan).text, "not bound: GTOPK_BIND=none");
  EXPECT_THAT(placement(bind_setting("none", kAllowed), plan).engine, IsEmpty());
  const Placement told = placement(bind_setting("2-3", kAllowed), plan);
  EXPECT_EQ(told.engine, (Cores{2, 3}));
  EXPECT_EQ(told.text, "cores 2-3: set by GTOPK_BIND");
  EXPECT_EQ(placement(bind_setting("", kAllowed), {.why = kOneNode}).text,
            fmt::format("not bound: {}", kOneNode));
}

TEST(Placement, HasWhatUcxIsToldHoweverTheEngineIsBound) {
  const Plan plan{.engine = {0, 1}, .devices = "eth1", .why_devices = "all are in 10.1.0.0/16"};
  for (const char* const setting : {"", "none", "2-3"}) {
    const Placement made = placement(bind_setting(setting, kAllowed), plan);
    EXPECT_EQ(made.devices, "eth1") << setting;
    EXPECT_EQ(made.why_devices, "all are in 10.1.0.0/16") << setting;
  }
}

TEST(Placement, BindsTheThreadThatAsksForIt) {
  const Cores all = allowed_here();
  std::thread([&] {
    bind_this_thread({.engine = {all.back()}, .text = "for a test"});
    EXPECT_EQ(allowed_here(), Cores{all.back()});
    bind_this_thread({.text = "not at all"});
    EXPECT_EQ(allowed_here(), Cores{all.back()});
    bind_this_thread({.engine = {65535}, .text = "where there is no core"});  // a line in the log
    EXPECT_EQ(allowed_here(), Cores{all.back()});
  }).join();
  EXPECT_EQ(allowed_here(), all);
}

}  // namespace
}  // namespace gtopk::topology
