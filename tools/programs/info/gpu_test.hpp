// gtopk-info --gpu: tests the kernels and the streams of this machine's GPUs, in full.
#pragma once

#include <chrono>

namespace gtopk::programs::info {

/// Prints a line for each GPU and element type, and for each call that differs from the CPU. The
/// tests run in a child process, so that a crash is also reported. The child is killed if it prints
/// nothing for `limit`. Returns the exit code: kFailed if anything is wrong. No driver may have
/// been loaded before.
[[nodiscard]] int test_gpus(std::chrono::nanoseconds limit);

}  // namespace gtopk::programs::info
