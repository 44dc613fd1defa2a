// GPU: one call of the self-test after another: its memory, its end, and the comparison of
// what it has written. It knows no case.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "src/cuda/calls.hpp"
#include "src/gpu/driver.hpp"
#include "src/gpu/self_test.hpp"

namespace gtopk::gpu {

/// Elements in the device's memory, and their copy on the host.
template <class U>
struct Mirrored {
  U* host = nullptr;
  U* device = nullptr;
};

/// Waits until the stream has done everything, or for the limit. Returns the driver's answer: 0,
/// Driver::kNotReady, or why the device has failed.
[[nodiscard]] Driver::Result end_of(const Driver& driver, Driver::Stream stream,
                                    std::chrono::milliseconds limit);

class SelfTestRun {
 public:
  /// A call did not end, or the device has failed; the report says so.
  class Stuck : public Failure {
   public:
    using Failure::Failure;
  };

  /// mirrored, pinned: the most bytes that one call takes of each kind.
  SelfTestRun(const Driver& driver, const cuda::Calls& kernels, Driver::Stream stream,
              std::size_t mirrored, std::size_t pinned, std::chrono::milliseconds limit);
  SelfTestRun(const SelfTestRun&) = delete;
  SelfTestRun& operator=(const SelfTestRun&) = delete;
  SelfTestRun(SelfTestRun&&) = delete;
  SelfTestRun& operator=(SelfTestRun&&) = delete;
  ~SelfTestRun();

  [[nodiscard]] const cuda::Calls& kernels() const { return kernels_; }
  [[nodiscard]] const SelfTestReport& report() const { return report_; }

  /// The next call: "select (exact, 41 of 4097)". What the last one took is free again.
  void begin(std::string name);

  /// A copy of these elements, which the call gets; after it, what it has left of them.
  /// `before`: elements of padding in front, for odd addresses.
  template <class U>
  [[nodiscard]] Mirrored<U> mirrored(std::span<const U> elements, std::size_t before = 0) {
    static_assert(std::is_trivially_copyable_v<U>);
    const std::size_t at =
        take((before + elements.size()) * sizeof(U), mirrored_taken_, mirrored_size_) +
        before * sizeof(U);
    U* const host = reinterpret_cast<U*>(pinned_ + at);
    std::ranges::copy(elements, host);
    return {host, reinterpret_cast<U*>(device_ + at)};
  }
  /// Pinned memory that both sides use, with a copy of these elements in it.
  template <class U>
  [[nodiscard]] U* pinned(std::span<const U> elements) {
    U* const all = pinned<U>(elements.size());
    std::ranges::copy(elements, all);
    return all;
  }
  /// The same, with whatever is there.
  template <class U>
  [[nodiscard]] U* pinned(std::size_t count) {
    static_assert(std::is_trivially_copyable_v<U>);
    const std::size_t at = take(count * sizeof(U), pinned_taken_, pinned_size_);
    return reinterpret_cast<U*>(pinned_ + mirrored_size_ + at);
  }
  /// The device's memory, once for each call.
  [[nodiscard]] void* scratch(std::size_t bytes);

  /// Enqueues the copy to the device, the call, and the copy back; waits for the end. False, and
  /// the call has failed, if the kernels' library returns an error. Throws Stuck.
  template <class Call>
  [[nodiscard]] bool run(int (*function)(const Call&, void*), const Call& call) {
    copy_in();
    return finish(function(call, stream_));
  }

  /// The call has failed unless these bits are equal. `from`: the number of the first element.
  template <class U>
  void expect(std::string_view what, const U* seen,
              std::type_identity_t<std::span<const U>> expected, std::size_t from = 0) {
    compare(what, seen, expected.data(), expected.size(), sizeof(U), from);
  }

 private:
  /// Of so many bytes in one of the blocks; aligned to 64.
  [[nodiscard]] static std::size_t take(std::size_t bytes, std::size_t& taken, std::size_t size);
  void copy_in();
  [[nodiscard]] bool finish(int error);
  void wait();
  void compare(std::string_view what, const void* seen, const void* expected, std::size_t count,
               std::size_t width, std::size_t from);
  /// Once for each call: what follows from its first failure is of no interest.
  void fail(const std::string& why);

  const Driver& driver_;
  const cuda::Calls& kernels_;
  const Driver::Stream stream_;
  const std::chrono::milliseconds limit_;
  const std::size_t mirrored_size_;
  const std::size_t pinned_size_;
  std::byte* device_ = nullptr;
  std::byte* pinned_ = nullptr;  ///< the copies on the host, and behind them the rest
  std::byte* scratch_ = nullptr;
  std::size_t scratch_size_ = 0;
  std::size_t mirrored_taken_ = 0;
  std::size_t pinned_taken_ = 0;
  bool stuck_ = false;
  bool failed_ = false;  ///< this call
  std::string name_;
  SelfTestReport report_;
};

}  // namespace gtopk::gpu
