#include "src/gpu/self_test.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string_view>

#include "gtopk/error.hpp"
#include "src/gpu/self_test_cases.hpp"
#include "src/gpu/self_test_run.hpp"
#include "src/numbers/element_types.hpp"

namespace gtopk::gpu {
namespace {

constexpr const char* kVariable = "GTOPK_CUDA_SELF_TEST";

/// The extents of the test, one row for each group of calls.
constexpr SelfTestExtent kShortExtent{};
constexpr SelfTestExtent kFullExtents[] = {
    kShortExtent,
    {.seed = 2, .few = 4096, .many = 0},
    {.seed = 3, .few = 20'011, .many = 0},
    {.seed = 4, .few = 130, .many = kMany - 1},
    {.seed = 5, .few = 130, .many = (1U << 22U) + 1},  // more tiles than a GPU runs blocks
};

template <class T>
void make_calls(SelfTestRun& run, DataType dtype, SelfTest extent) {
  if (extent == SelfTest::kShort) {
    SelfTestCases<T>(run, dtype, kShortExtent).make_all_calls();
    return;
  }
  for (const SelfTestExtent& each : kFullExtents) {
    SelfTestCases<T>(run, dtype, each).make_all_calls();
  }
}

}  // namespace

SelfTest self_test_of_environment() {
  const char* const variable = std::getenv(kVariable);
  const std::string_view text = variable == nullptr ? "1" : variable;
  if (text == "0") {
    return SelfTest::kNone;
  }
  if (text == "1") {
    return SelfTest::kShort;
  }
  if (text == "full") {
    return SelfTest::kFull;
  }
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("{} is '{}': expected 0, 1 or full", kVariable, text));
}

SelfTestReport test_kernels(const Driver& driver, const cuda::Calls& kernels, DataType dtype,
                            Driver::Stream stream, SelfTest extent,
                            std::chrono::milliseconds limit) {
  if (extent == SelfTest::kNone) {
    return {};
  }
  std::uint64_t longest = kShortExtent.many;
  if (extent == SelfTest::kFull) {
    longest = std::ranges::max(kFullExtents, {}, &SelfTestExtent::many).many;
  }
  // The space suffices for tensor, residual and momentum, and a list with an entry for each
  // element.
  constexpr std::size_t kMore = 65'536;
  SelfTestRun run(driver, kernels, stream, longest * 3 * sizeof(double) + kMore,
                  longest * 2 * sizeof(double) + kMore, limit);
  try {
    visit_floating(dtype, [&]<class T>() { make_calls<T>(run, dtype, extent); });
  } catch (const SelfTestRun::Stuck&) {
    // The report says that the call is stuck.
    return run.report();
  }
  return run.report();
}

std::uint32_t test_waits(const Driver& driver, Driver::Stream stream,
                         std::atomic<std::uint32_t>& flag, std::uint32_t next, int trips,
                         std::chrono::milliseconds limit) {
  const std::uint32_t last = next + static_cast<std::uint32_t>(trips);
  try {
    const auto wait_for = [&](std::uint32_t value) {
      driver.check(driver.wait_value(stream, reinterpret_cast<std::uint64_t>(&flag), value, 0),
                   "let a stream wait for a number in memory");
    };
    const auto require_end = [&] {
      const Driver::Result result = end_of(driver, stream, limit);
      if (result == Driver::kNotReady) {
        throw Failure(
            fmt::format("a stream did not see a number in memory within {} ms", limit.count()));
      }
      driver.check(result, "query a stream");
    };
    flag.store(next, std::memory_order_release);
    wait_for(next);
    for (int trip = 0; trip < trips; ++trip) {
      require_end();
      wait_for(++next);
      if (driver.query_stream(stream) == 0) {
        throw Failure("a stream does not wait for a number in memory");
      }
      flag.store(next, std::memory_order_release);
    }
    if (trips != 0) {
      require_end();
    }
  } catch (...) {
    flag.store(last, std::memory_order_release);
    throw;
  }
  return last;
}

}  // namespace gtopk::gpu
