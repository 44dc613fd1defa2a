// Test support: a simulated device, to test how gtopk uses a real one. Its memory is the host's;
// its streams run on one thread, each in order, interleaved at random.
//
// The addresses handed out as device memory cannot be accessed; only the copy functions know a
// second mapping that can. So reading a tensor without copying it crashes. Memory that is freed
// while a copy is in flight, without being marked as in use on that stream, is overwritten at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fake {

/// A stream's queue of work, run in order. Any thread may use it.
class Stream;

inline constexpr int kPool = 32;
inline constexpr int kStreams = 1 + 2 * kPool;  ///< the default one, and those of two pools
[[nodiscard]] Stream& stream(int number);
[[nodiscard]] int number_of(const Stream& stream);

/// Runs `task` on the device's thread after the stream's earlier work, once `may_run` returns true
/// there.
void enqueue(Stream& stream, std::function<void()> task, std::function<bool()> may_run = {});
/// How much work the stream has been given, and has done.
[[nodiscard]] std::uint64_t given(const Stream& stream);
[[nodiscard]] std::uint64_t done(const Stream& stream);
/// Blocks until the stream is idle, or the device has failed.
void synchronize(Stream& stream);

struct Memory {
  /// Device memory, which crashes on access; with `pinned`, host memory. `on` is the stream whose
  /// work may always use it; null for none.
  [[nodiscard]] static void* take(std::size_t bytes, bool pinned, const Stream* on);
  /// Ends the process if the device has failed and the memory is pinned and was in use on a stream.
  static void give_back(void* memory);
  /// Prevents reuse until the stream has done all that it has when the memory is given back.
  static void in_use_on(const void* memory, const Stream& stream);
  [[nodiscard]] static bool is_pinned(const void* memory);
  /// The accessible address behind device memory, for copies.
  [[nodiscard]] static void* behind(const void* device_memory);
  /// The same of the device's memory; other memory is where it is.
  [[nodiscard]] static void* reachable(const void* memory);
};

/// Counts a call, or something else, by name.
void count(const std::string& what, std::int64_t times = 1);
[[nodiscard]] std::map<std::string, std::int64_t> counts();
/// What was called since this was last asked, by name, in order.
[[nodiscard]] std::vector<std::string> calls();

/// The stream's work waits at this point until release() has been called as often as hold().
void hold(Stream& stream);
void release();
/// Returns when nothing can run but what waits for memory, or for release().
void await_standstill();
/// After `more` calls of that name, which are counted in cuStreamWaitValue32, cuLaunchHostFunc and
/// the kernels, one fails.
/// FAKE_DEVICE_FAILS names one that fails when it is first called; FAKE_DEVICE_FAILS_AT one at
/// which the device does, see fault(): that call still seems to succeed.
void let_fail(const std::string& what, std::int64_t more);
/// Whether this call is the one, or the device has failed.
[[nodiscard]] bool fails(const std::string& what);
/// The device fails when the stream gets there, as if by a kernel's illegal access: its streams
/// stop for good, and every call is answered with error().
void fault(Stream& stream);
/// 0, or what the driver answers once the device has failed.
[[nodiscard]] int error();
/// How often the driver was asked about a stream. Not among the other calls: it depends on the time
/// that these take.
[[nodiscard]] std::int64_t queries();
/// Sets the answer of cuStreamIsCapturing.
void capture(bool on);

}  // namespace fake
