// The self-test, on the GPU: it passes; every result of every call that is not as it should be is
// found and named; and nothing takes longer than it may.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "gtopk/error.hpp"
#include "src/gpu/self_test.hpp"
#include "tests/cuda/kernels_gpu.hpp"

namespace gtopk::gpu {
namespace {

using sparse::testing::Gpu;
using sparse::testing::One;
using sparse::testing::Place;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr std::chrono::seconds kPatience(60);

/// Something that a call writes.
struct Result {
  const char* name;
  void* at;
  /// Or null. If it is 0 when the call has ended, the result does not count.
  const std::uint64_t* counts = nullptr;
};

enum class Fault : std::uint8_t { kBits, kError, kHang };

/// What is wrong with the kernels, in one test.
struct Faults {
  Fault fault = Fault::kBits;
  std::size_t result = 0;  ///< which one of each call, for kBits
  int first = 0;           ///< the calls before it are right
  std::uint32_t* flag = nullptr;

  int calls = 0;
  cuda::PieceOf piece{};                ///< the first of the last vector
  std::vector<std::string> expected{};  ///< "select index"
};
Faults& faults() {
  static Faults all;
  return all;
}

/// One byte that changes when the stream gets there.
struct Change {
  std::byte byte;
  std::string names;
  const std::uint64_t* counts;
};

void change(const std::string& names, const Result& result, void* stream) {
  static std::deque<Change> all;
  Change& one = all.emplace_back(Change{{}, names, result.counts});
  const Driver& driver = Gpu::get().driver();
  const auto address = reinterpret_cast<std::uint64_t>(result.at);
  const auto call = [](void* argument) {
    auto& here = *static_cast<Change*>(argument);
    if (here.counts == nullptr || *here.counts != 0) {
      here.byte ^= std::byte{0x40};
      faults().expected.push_back(here.names);
    }
  };
  driver.check(driver.copy_out(&one.byte, address, 1, stream), "copy");
  driver.check(driver.launch_host_function(stream, call, &one), "call");
  driver.check(driver.copy_in(address, &one.byte, 1, stream), "copy");
}

std::vector<Result> results_of(const cuda::SelectCall& call) {
  auto* const report = static_cast<SelectionReport*>(call.report);
  std::vector<Result> all = {{"entries", &report->kept},
                             {"finite", &report->finite},
                             {"index", call.kept.indices, &report->kept},
                             {"value", call.kept.values, &report->kept}};
  if (call.rule.kind == SelectionRule::Kind::kThreshold) {
    all.push_back({"next state", call.next, &report->finite});
  }
  return all;
}
std::vector<Result> results_of_commit(void* momentum) {
  std::vector<Result> all = {{"tensor", faults().piece.tensor}};
  for (const Result& one : {Result{"residual", faults().piece.residual}, {"momentum", momentum}}) {
    if (one.at != nullptr) {
      all.push_back(one);
    }
  }
  return all;
}
std::vector<Result> results_of(const cuda::CommitCall& call) {
  return results_of_commit(call.momentum);
}
std::vector<Result> results_of(const cuda::CommitWholeCall&) { return results_of_commit(nullptr); }
std::vector<Result> results_of(const cuda::AccumulateCall& call) { return {{"acc", call.to}}; }
std::vector<Result> results_of(const cuda::GatherCall& call) {
  return {{"finite", call.finite}, {"value", call.values, call.finite}};
}
std::vector<Result> results_of(const cuda::SketchCall& call) {
  // Of the exponent: it may be NaN, and any would do.
  return {{"cell", static_cast<std::byte*>(call.cells) + size_of(call.acc.dtype) - 1}};
}
std::vector<Result> results_of(const cuda::FindCall& call) {
  auto* const report = static_cast<SelectionReport*>(call.report);
  return {{"entries", &report->kept}, {"index", call.heaviest.indices, &report->kept}};
}

template <class Call, int (*cuda::Calls::*Function)(const Call&, void*)>
int call_with_faults(const char* kernel, const Call& call, void* stream) {
  Faults& all = faults();
  const bool is_wrong = all.calls++ >= all.first;
  if (is_wrong && all.fault == Fault::kError) {
    return 98;
  }
  const Driver& driver = Gpu::get().driver();
  if (is_wrong && all.fault == Fault::kHang) {
    driver.check(driver.wait_value(stream, reinterpret_cast<std::uint64_t>(all.flag), 1, 0),
                 "wait");
  }
  const int error = (Gpu::get().calls().*Function)(call, stream);
  const std::vector<Result> results = results_of(call);
  if (is_wrong && all.fault == Fault::kBits && all.result < results.size()) {
    change(std::string(kernel) + " " + results[all.result].name, results[all.result], stream);
  }
  return error;
}

/// The kernels, with these faults.
cuda::Calls kernels_with(Faults all) {
  faults() = std::move(all);
  cuda::Calls calls = Gpu::get().calls();
  calls.number_tiles = [](cuda::PieceOf* pieces, std::uint32_t count) {
    faults().piece = pieces[0];
    return Gpu::get().calls().number_tiles(pieces, count);
  };
  calls.select = [](const cuda::SelectCall& call, void* stream) {
    return call_with_faults<cuda::SelectCall, &cuda::Calls::select>("select", call, stream);
  };
  calls.commit = [](const cuda::CommitCall& call, void* stream) {
    return call_with_faults<cuda::CommitCall, &cuda::Calls::commit>("commit", call, stream);
  };
  calls.accumulate = [](const cuda::AccumulateCall& call, void* stream) {
    return call_with_faults<cuda::AccumulateCall, &cuda::Calls::accumulate>("accumulate", call,
                                                                            stream);
  };
  calls.gather = [](const cuda::GatherCall& call, void* stream) {
    return call_with_faults<cuda::GatherCall, &cuda::Calls::gather>("gather", call, stream);
  };
  calls.commit_whole = [](const cuda::CommitWholeCall& call, void* stream) {
    return call_with_faults<cuda::CommitWholeCall, &cuda::Calls::commit_whole>("commit_whole", call,
                                                                               stream);
  };
  calls.sketch = [](const cuda::SketchCall& call, void* stream) {
    return call_with_faults<cuda::SketchCall, &cuda::Calls::sketch>("sketch", call, stream);
  };
  calls.find = [](const cuda::FindCall& call, void* stream) {
    return call_with_faults<cuda::FindCall, &cuda::Calls::find>("find", call, stream);
  };
  return calls;
}

SelfTestReport report_of(const cuda::Calls& kernels, DataType dtype = DataType::kFloat32,
                         SelfTest extent = SelfTest::kShort,
                         std::chrono::milliseconds limit = kPatience) {
  return test_kernels(Gpu::get().driver(), kernels, dtype, Gpu::get().stream(), extent, limit);
}

TEST(KernelsSelfTest, PassesWithEveryElementType) {
  for (const DataType dtype :
       {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16, DataType::kFloat16}) {
    const SelfTestReport report = report_of(Gpu::get().calls(), dtype);
    EXPECT_THAT(report.failures, IsEmpty());
    EXPECT_GE(report.calls, 40U);
  }
}

// In full, gtopk-info does it: InfoGpu.TestsEveryElementType.
TEST(KernelsSelfTest, MakesNoCallWhereNoneIsWanted) {
  const SelfTestReport report = report_of(Gpu::get().calls(), DataType::kFloat64, SelfTest::kNone);
  EXPECT_EQ(report.calls, 0U);
  EXPECT_THAT(report.failures, IsEmpty());
}

// All calls at once: each is compared alone.
TEST(KernelsSelfTest, NamesEachResultThatHasOtherBits) {
  for (std::size_t result = 0; result < 5; ++result) {
    const SelfTestReport report = report_of(kernels_with({.result = result}));
    const std::vector<std::string>& expected = faults().expected;
    ASSERT_EQ(report.failures.size(), expected.size());
    EXPECT_GE(expected.size(), result == 0 ? report.calls : 3U);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::size_t space = expected[i].find(' ');
      EXPECT_THAT(report.failures[i],
                  AllOf(StartsWith(expected[i].substr(0, space) + " ("),
                        HasSubstr("): " + expected[i].substr(space + 1) + " 0: expec"),
                        HasSubstr(", seen 0x")));
    }
  }
}

TEST(KernelsSelfTest, NamesCallsThatAreRefusedAndMakesTheOthers) {
  const SelfTestReport report = report_of(kernels_with({.fault = Fault::kError, .first = 40}));
  EXPECT_GE(report.calls, 42U);
  ASSERT_EQ(report.failures.size(), report.calls - 40);
  EXPECT_THAT(report.failures.front(),
              AllOf(HasSubstr("float32): expected succe"), EndsWith("(98)")));
}

TEST(KernelsSelfTest, EndsWithACallThatDoesNot) {
  const One<std::uint32_t> flag(Place::kPinned, 0);
  const SelfTestReport report =
      report_of(kernels_with({.fault = Fault::kHang, .first = 2, .flag = flag.data()}),
                DataType::kFloat32, SelfTest::kShort, std::chrono::seconds(2));
  EXPECT_EQ(report.calls, 3U);
  EXPECT_THAT(report.failures,
              ElementsAre(EndsWith("expected to end within 2000 ms, still running")));
  std::atomic_ref(*flag.data()).store(1);
  Gpu::get().wait();
}

TEST(KernelsSelfTest, IsChosenByTheEnvironment) {
  constexpr const char* kVariable = "GTOPK_CUDA_SELF_TEST";
  unsetenv(kVariable);
  EXPECT_EQ(self_test_of_environment(), SelfTest::kShort);
  for (const auto& [text, extent] : std::vector<std::pair<const char*, SelfTest>>{
           {"0", SelfTest::kNone}, {"1", SelfTest::kShort}, {"full", SelfTest::kFull}}) {
    setenv(kVariable, text, 1);
    EXPECT_EQ(self_test_of_environment(), extent);
  }
  for (const char* const text : {"", "2", "yes"}) {
    setenv(kVariable, text, 1);
    try {
      static_cast<void>(self_test_of_environment());
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_EQ(std::string(error.what()),
                "GTOPK_CUDA_SELF_TEST is '" + std::string(text) + "': expected 0, 1 or full");
    }
  }
  unsetenv(kVariable);
}

/// A flag in pinned memory, and how the waits of a stream for it end.
class SelfTestWaits : public ::testing::Test {
 protected:
  /// Empty on success.
  std::string why_not(const Driver& driver, std::chrono::milliseconds limit = kPatience) {
    try {
      EXPECT_EQ(test_waits(driver, Gpu::get().stream(), *flag(), kFirst, kWaitTrips, limit),
                last());
      return "";
    } catch (const Failure& failure) {
      return failure.what();
    }
  }
  /// Lets whatever waits continue.
  void TearDown() override {
    EXPECT_EQ(flag()->load(), last());
    flag()->store(1000);
    Gpu::get().wait();
  }
  [[nodiscard]] std::atomic<std::uint32_t>* flag() const {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.data());
  }

  static constexpr std::uint32_t kFirst = 7;
  static std::uint32_t last() { return kFirst + static_cast<std::uint32_t>(kWaitTrips); }

 private:
  const One<std::uint32_t> memory_{Place::kPinned, 0};
};

TEST_F(SelfTestWaits, EndWhenTheNumberIsWritten) { EXPECT_EQ(why_not(Gpu::get().driver()), ""); }

TEST_F(SelfTestWaits, ThatNeverEndAreGivenUp) {
  Driver driver = Gpu::get().driver();
  driver.wait_value = [](Driver::Stream stream, std::uint64_t address, std::uint32_t value,
                         unsigned flags) {
    return Gpu::get().driver().wait_value(stream, address, value + 100, flags);
  };
  EXPECT_EQ(why_not(driver, std::chrono::milliseconds(100)),
            "a stream did not see a number in memory within 100 ms");
}

TEST_F(SelfTestWaits, ThatDoNotWaitAreNoticed) {
  Driver driver = Gpu::get().driver();
  driver.wait_value = [](Driver::Stream, std::uint64_t, std::uint32_t, unsigned) { return 0; };
  EXPECT_EQ(why_not(driver), "a stream does not wait for a number in memory");
}

TEST_F(SelfTestWaits, ThatTheDriverRefusesAreNamed) {
  Driver driver = Gpu::get().driver();
  driver.wait_value = [](Driver::Stream, std::uint64_t, std::uint32_t, unsigned) { return 801; };
  EXPECT_THAT(why_not(driver), AllOf(StartsWith("the driver cannot let a stream wait for a number"),
                                     EndsWith("(801)")));
}

}  // namespace
}  // namespace gtopk::gpu
