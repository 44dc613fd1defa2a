// Test support: a device that is none, for tests of what gtopk does with a real one. Its memory is
// the host's, its streams run on a thread, in order each and at random among one another.
//
// What is handed out as the device's memory cannot be touched: a second mapping of it, which only
// copies know, can. So whoever reads a tensor without copying it crashes. Memory that is freed
// while a copy is under way, and was not said to be in use on that stream, is overwritten at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace fake {

/// A stream's work, in order. Any thread.
class Stream;

inline constexpr int kPool = 32;
inline constexpr int kStreams = 1 + 2 * kPool;  ///< the default one, and those of two pools
[[nodiscard]] Stream& stream(int number);
[[nodiscard]] int number_of(const Stream& stream);

/// Runs `task` behind what the stream was given before, once `may_run`; both on the device's
/// thread.
void enqueue(Stream& stream, std::function<void()> task, std::function<bool()> may_run = {});
/// How much work the stream was given so far, and has done.
[[nodiscard]] std::uint64_t given(const Stream& stream);
[[nodiscard]] std::uint64_t done(const Stream& stream);
/// Blocks.
void synchronize(Stream& stream);

struct Memory {
  /// Of the device, which crashes who touches it; `pinned` is the host's. `on`: the stream whose
  /// work it may always be used in; null for none.
  [[nodiscard]] static void* take(std::size_t bytes, bool pinned, const Stream* on);
  static void give_back(void* memory);
  /// Not to be reused before the stream has done what it was given until now.
  static void in_use_on(const void* memory, const Stream& stream);
  [[nodiscard]] static bool is_pinned(const void* memory);
  /// Where a copy finds the device's memory.
  [[nodiscard]] static void* behind(const void* device_memory);
};

/// Notes that something was called, by name.
void count(const std::string& what);
[[nodiscard]] std::map<std::string, std::int64_t> counts();

/// Every stream's work waits there until release() has been called as often as hold().
void hold(Stream& stream);
void release();
/// What cuStreamIsCapturing says.
void capture(bool on);

}  // namespace fake
