// GPU: runs the calls of the self-test one after another: their memory, their ends, and the
// comparison of their outputs. It does not know the cases.
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

/// Waits until the stream has done everything or the limit has passed. Returns the driver's answer:
/// 0, Driver::kNotReady, or the reason why the device has failed.
[[nodiscard]] Driver::Result end_of(const Driver& driver, Driver::Stream stream,
                                    std::chrono::milliseconds limit);

class SelfTestRun {
 public:
  /// Thrown if a call did not end or the device has failed; the report says so.
  class Stuck : public Failure {
   public:
    using Failure::Failure;
  };

  /// `mirrored` and `pinned` are the most bytes of each kind that one call takes.
  SelfTestRun(const Driver& driver, const cuda::Calls& kernels, Driver::Stream stream,
              std::size_t mirrored, std::size_t pinned, std::chrono::milliseconds limit);
  SelfTestRun(const SelfTestRun&) = delete;
  SelfTestRun& operator=(const SelfTestRun&) = delete;
  SelfTestRun(SelfTestRun&&) = delete;
  SelfTestRun& operator=(SelfTestRun&&) = delete;
  ~SelfTestRun();

  [[nodiscard]] const cuda::Calls& kernels() const { return kernels_; }
  [[nodiscard]] const SelfTestReport& report() const { return report_; }

  /// Begins the next call, such as "select (exact, 41 of 4097)". The memory of the last call is
  /// free again.
  void begin(std::string name);

  /// Copies these elements for the call; afterwards the copy holds what the call has written.
  /// `before` is the number of padding elements in front, for odd addresses.
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
  /// Returns pinned memory that both sides use, with a copy of these elements.
  template <class U>
  [[nodiscard]] U* pinned(std::span<const U> elements) {
    U* const all = pinned<U>(elements.size());
    std::ranges::copy(elements, all);
    return all;
  }
  /// Returns the same memory, uninitialised.
  template <class U>
  [[nodiscard]] U* pinned(std::size_t count) {
    static_assert(std::is_trivially_copyable_v<U>);
    const std::size_t at = take(count * sizeof(U), pinned_taken_, pinned_size_);
    return reinterpret_cast<U*>(pinned_ + mirrored_size_ + at);
  }
  /// Returns device memory; may be called once for each call.
  [[nodiscard]] void* scratch(std::size_t bytes);

  /// Enqueues the copy to the device, the call, and the copy back; waits for the end. If the
  /// kernels' library returns an error, the call has failed, and the function returns false. Throws
  /// Stuck.
  template <class Call>
  [[nodiscard]] bool run(int (*function)(const Call&, void*), const Call& call) {
    copy_in();
    return finish(function(call, stream_));
  }

  /// Fails the call unless these bits are equal. `from` is the number of the first element.
  template <class U>
  void expect(std::string_view what, const U* seen,
              std::type_identity_t<std::span<const U>> expected, std::size_t from = 0) {
    compare(what, seen, expected.data(), expected.size(), sizeof(U), from);
  }

 private:
  /// Takes this many bytes of one of the blocks, aligned to 64; returns their position.
  [[nodiscard]] static std::size_t take(std::size_t bytes, std::size_t& taken, std::size_t size);
  void copy_in();
  [[nodiscard]] bool finish(int error);
  void wait();
  void compare(std::string_view what, const void* seen, const void* expected, std::size_t count,
               std::size_t width, std::size_t from);
  /// Records a failure, once for each call, because later failures follow from the first.
  void fail(const std::string& why);

  const Driver& driver_;
  const cuda::Calls& kernels_;
  const Driver::Stream stream_;
  const std::chrono::milliseconds limit_;
  const std::size_t mirrored_size_;
  const std::size_t pinned_size_;
  std::byte* device_ = nullptr;
  std::byte* pinned_ = nullptr;  ///< the host copies, followed by the other pinned memory
  std::byte* scratch_ = nullptr;
  std::size_t scratch_size_ = 0;
  std::size_t mirrored_taken_ = 0;
  std::size_t pinned_taken_ = 0;
  bool stuck_ = false;
  bool failed_ = false;  ///< whether this call has failed
  std::string name_;
  SelfTestReport report_;
};

}  // namespace gtopk::gpu
