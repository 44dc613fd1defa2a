// GPU: tests whether a device computes what the CPU computes, bit for bit, with every call of the
// kernels on small vectors, and whether its streams wait for a number in memory. The test runs when
// a device is first used, and in full in gtopk-info --gpu. It does not depend on torch.
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
  kShort,  ///< about 50 calls; meant to take less than 100 ms
  kFull,   ///< more sizes and seeds
};

/// The setting in GTOPK_CUDA_SELF_TEST: 0, 1 (also if it is not set) or full. Throws
/// Error{kInvalidArgument}.
[[nodiscard]] SelfTest self_test_of_environment();

struct SelfTestReport {
  std::uint64_t calls = 0;
  /// One line for each call that failed: its kernel and case, what was expected and what was seen.
  /// Empty if all bits match the CPU's.
  std::vector<std::string> failures;
};

/// The time limit for a call's kernels.
inline constexpr std::chrono::seconds kCallLimit{10};
/// The time limit for a stream to notice a number.
inline constexpr std::chrono::seconds kWaitLimit{1};
inline constexpr int kWaitTrips = 20;

/// Makes every call of the loaded kernels for that element type, on a stream of the device that is
/// current on this thread, in its own memory. It waits for each call, and continues after a wrong
/// one. If a call does not end, it is the last, and its memory is never freed. Throws Failure if
/// there is no memory for the test.
[[nodiscard]] SelfTestReport test_kernels(const Driver& driver, const cuda::Calls& kernels,
                                          DataType dtype, Driver::Stream stream, SelfTest extent,
                                          std::chrono::milliseconds limit = kCallLimit);

/// Lets the stream wait for a number that is already there, and then `trips` times for a number
/// that is written afterwards. `flag` is in pinned memory. The function sets it to `next` and adds
/// one for each trip, on success or failure, so that anything that waits for one of these numbers
/// continues. Returns the last number. Throws Failure if the driver refuses, or if the stream does
/// not wait or does not continue.
std::uint32_t test_waits(const Driver& driver, Driver::Stream stream,
                         std::atomic<std::uint32_t>& flag, std::uint32_t next, int trips,
                         std::chrono::milliseconds limit = kWaitLimit);

}  // namespace gtopk::gpu
