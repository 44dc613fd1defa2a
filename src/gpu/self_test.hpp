// GPU: whether a device computes what the CPU computes: every call of the kernels, on small
// vectors, bit for bit; and whether its streams wait for a number in memory. Made when a device is
// first used, and in full by gtopk-info --gpu. It knows no torch.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "gtopk/types.hpp"
#include "src/cuda/calls.hpp"
#include "src/gpu/driver.hpp"

namespace gtopk::gpu {

enum class SelfTest : std::uint8_t {
  kNone,
  kShort,  ///< some 50 calls; meant to take less than 100 ms
  kFull,   ///< more sizes and seeds
};

/// What GTOPK_CUDA_SELF_TEST says: 0, 1 (also if it is not set) or full. Throws
/// Error{kInvalidArgument}.
[[nodiscard]] SelfTest self_test_of_environment();

struct SelfTestReport {
  std::uint64_t calls = 0;
  /// One line for each call that failed: its kernel and case, what was expected and what was seen.
  /// Empty: all bits are the CPU's.
  std::vector<std::string> failures;
};

/// How long a call's kernels may take.
inline constexpr std::chrono::seconds kCallLimit{10};
/// How long a stream may take to notice a number.
inline constexpr std::chrono::seconds kWaitLimit{1};
inline constexpr int kWaitTrips = 20;

/// Makes every call of the kernels for that element type, which are loaded, on a stream of the
/// device, which is current on this thread; in memory of its own. Waits for each call, and goes on
/// after a wrong one; a call that does not end is the last, and its memory is never freed. Throws
/// Failure if there is no memory for the test.
[[nodiscard]] SelfTestReport test_kernels(const Driver& driver, const cuda::Calls& kernels,
                                          DataType dtype, Driver::Stream stream, SelfTest extent,
                                          std::chrono::milliseconds limit = kCallLimit);

/// Lets the stream wait for a number that is there, and then `trips` times for one that is written
/// after it. `flag`: in pinned memory. Sets it to `next`, and adds one for each trip, on success or
/// failure: whatever waits for one of these numbers continues. Returns the last. Throws Failure if
/// the driver refuses, or if the stream does not wait or does not continue.
std::uint32_t test_waits(const Driver& driver, Driver::Stream stream,
                         std::atomic<std::uint32_t>& flag, std::uint32_t next, int trips,
                         std::chrono::milliseconds limit = kWaitLimit);

}  // namespace gtopk::gpu
