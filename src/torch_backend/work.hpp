// Torch backend: one operation as torch sees it: a Work to wait for, with a future on demand.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "gtopk/communicator.hpp"
#include "src/torch_backend/call_order.hpp"
#include "src/torch_backend/completer.hpp"
#include "src/torch_backend/contiguous.hpp"
#include "src/torch_backend/device_call.hpp"
#include "src/torch_backend/group_state.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

/// Longer timeouts are cut to this one, because adding them to a clock's time could overflow.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 100);

/// A Work that knows when its operation ran.
class TimedWork : public c10d::Work {
 public:
  using Clock = std::chrono::steady_clock;
  struct Span {
    Clock::time_point began;
    Clock::time_point over_at;

    [[nodiscard]] Span and_of(const Span& other) const {
      return {std::min(began, other.began), std::max(over_at, other.over_at)};
    }
    [[nodiscard]] float milliseconds() const {
      return std::chrono::duration<float, std::milli>(over_at - began).count();
    }
  };
  using Work::Work;
  /// Counts callbacks of `whole`, which this Work's future's callbacks complete, as callbacks of
  /// its future.
  virtual void is_part_of(const c10::intrusive_ptr<c10::ivalue::Future>& whole) {
    static_cast<void>(whole);
  }
  /// The time from the call to the end; throws before that.
  [[nodiscard]] virtual Span span() const = 0;
  float getDuration() const final { return span().milliseconds(); }
};

class GtopkWork final : public TimedWork {
 public:
  using Future = c10::ivalue::Future;

  /// Makes a Work. `memory` must live until the network no longer uses it, and is copied back on
  /// success. `result` is the future's value.
  GtopkWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
            std::vector<Contiguous> memory, std::vector<at::Tensor> result);
  GtopkWork(const GtopkWork&) = delete;
  GtopkWork& operator=(const GtopkWork&) = delete;
  GtopkWork(GtopkWork&&) = delete;
  GtopkWork& operator=(GtopkWork&&) = delete;
  ~GtopkWork() override;

  // A Work has ended when its results are in place and its future, if one was requested, has its
  // value. The future's callbacks run after that because they may wait for the Work. wait() runs
  // Python's signal handlers; if one raises, the operation continues without it. On a device,
  // wait() makes the current stream wait, and blocks only if a timeout is given or
  // GTOPK_BLOCKING_WAIT says so; the future is set when the network has done its part.
  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return result_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// Its value is a c10d::WorkResult; it never has an error.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// The sender of a receive.
  int sourceRank() const override;
  /// The number as in error texts: 1 for a group's first collective; 0 for a message, and for a
  /// deferred collective until it starts.
  uint64_t getSequencenumber() const override { return sequence_; }
  [[nodiscard]] Span span() const override;
#if TORCH_VERSION_MINOR >= 14
  std::chrono::milliseconds getTimeout() const override { return timeout_.load(); }
#endif
#if TORCH_VERSION_MINOR >= 15
  uint64_t getCompletionKey() const override { return key_; }
#endif

  /// On success, `finish` runs after results are copied back and before any waiter is notified.
  /// Must be called at most once, before the operation is started.
  void at_end(std::function<void()> finish) { finish_ = std::move(finish); }
  /// See DeviceCall::also_write(); for tensors on a device.
  void also_write(std::function<void(const c10::Stream& stream)> write) {
    device_->also_write(std::move(write));
  }
  /// See DeviceCall::also_read().
  void also_read(std::function<void()> read) { device_->also_read(std::move(read)); }
  /// Declares that its operation waits at a gate before it commits; see DeviceCall::copy_late(). No
  /// barrier waits for it meanwhile.
  void wait_at_gate() {
    gated_ = true;
    if (device_) {
      device_->copy_late();
    }
  }
  /// See DeviceCall::watch(); it does nothing for CPU tensors.
  void watch_device(gpu::Watch::Failed failed) {
    if (device_) {
      device_->watch(std::move(failed));
    }
  }
  /// Makes it end, on success, after all earlier collectives of the group, including their results.
  void end_after_earlier() { after_earlier_ = true; }
  /// Takes its future's callbacks out of the group's order, because they call no collectives of the
  /// group. Must be called before its future is requested.
  void leave_order() { in_order_ = false; }
  [[nodiscard]] bool on_device() const { return device_ != nullptr; }
  /// See DeviceCall::works_meanwhile().
  void works_meanwhile() { device_->works_meanwhile(); }
  /// The variable in which the core stores the sender of a receive. It is set in advance if the
  /// sender is known.
  [[nodiscard]] std::uint32_t& source() { return source_; }

  /// Makes the settings for the core's call, as operation `sequence` of a group of this state. For
  /// `unseen`, see UnseenError.
  [[nodiscard]] Call call(Completer& completer, std::chrono::milliseconds timeout,
                          uint64_t sequence, std::shared_ptr<GroupState> group,
                          std::shared_ptr<UnseenError> unseen);
  /// Undoes call() if the core did not accept the call.
  void not_taken();
  /// Must be called once the core has accepted the call. `polling_pays`: see Communicator.
  void begin(bool polling_pays);
  /// Records that it is called later, when its turn comes.
  void deferred(CallOrder::EntryPointer entry);
  void is_part_of(const c10::intrusive_ptr<Future>& whole) override;

 private:
  [[nodiscard]] bool ended() const {
    return ending_->completed && (!future_ || future_->completed());
  }
  using Self = c10::intrusive_ptr<GtopkWork>;

  /// The objects that a Work holds.
  struct Held;

  /// Completion state shared with waiters. The thread that ends the Work also holds it, and
  /// releases the Work before it notifies them. So waiters hold the tensors last, and free them
  /// themselves.
  struct Ending {
    std::mutex mutex;  ///< also guards the Work's own state
    std::condition_variable told;
    bool completed = false;
    /// Whether the operation has ended; readable without the mutex.
    std::atomic<bool> over{false};
  };

  /// Handles the end of the operation. Called on the engine thread; neither throws nor copies.
  void operation_ended(Completer& completer, const std::exception_ptr& error, Self self) noexcept;
  void copy_back(Self self);
  /// Wakes waiters. Returns `self` if its future is to be completed next; otherwise this Work may
  /// no longer exist.
  [[nodiscard]] static Self end(Self self, std::exception_ptr error);
  /// Completes the future of a Work that has ended: now or, if callbacks of others come first,
  /// later. Must not be called on the engine's thread.
  static void finish(Self self);
  void complete() const;
  /// Must be called when its future has been made. Gives the future's callbacks their place in the
  /// group's order.
  void follow();
  /// Must be called before a callback waits for it.
  void want();
  /// Reports to extended timeouts and completion hooks, before the end becomes visible.
  void tell_group(bool failed, Clock::time_point over_at);
  /// Returns the information that the end hook then gets; null if there is no hook.
  [[nodiscard]] std::shared_ptr<c10d::WorkInfo> info_for_hook(Clock::time_point over_at) const;
  /// Makes the current stream wait. Returns false if its results are copied late, so that there is
  /// nothing yet for a stream to wait for.
  [[nodiscard]] bool wait_on_stream();
  /// Rethrows the device's error if the operation has none of its own.
  [[noreturn]] void raise_instead(const std::exception_ptr& of_device);
  /// Throws the error, if any. Must be called with the mutex held.
  void raise() const;
  /// Leaves torch's list of Works in flight, which is used by graphs that begin with a Work.
  void leave_registry();

  std::vector<Contiguous> memory_;
  std::vector<at::Tensor> result_;
  std::function<void()> finish_;
  const std::shared_ptr<Ending> ending_ = std::make_shared<Ending>();
  c10::intrusive_ptr<Future> future_;   // guarded by the mutex
  std::unique_ptr<DeviceCall> device_;  // null on the CPU
  std::shared_ptr<UnseenError> unseen_;
  std::shared_ptr<GroupState> group_;
  Completer* completer_ = nullptr;
  std::vector<std::uint64_t> extensions_;  ///< extensions that end with this Work
  std::atomic<std::chrono::milliseconds> timeout_{std::chrono::milliseconds(0)};
  Clock::time_point began_;
  Clock::time_point over_at_;  ///< guarded by the mutex
  const std::uint64_t key_;    ///< unique among this process's Works
  std::atomic<uint64_t> sequence_ = 0;
  const CallOrder::EntryPointer caller_ = CallOrder::calling();  ///< its callback called this Work
  std::optional<CallOrder::InFlight> in_flight_;                 ///< from call() to the end
  CallOrder::EntryPointer entry_;                                ///< guarded by the mutex
  bool in_order_ = true;
  c10d::WorkResult outcome_ = c10d::WorkResult::SUCCESS;  ///< written before the end
  std::uint32_t source_ = 0;
  std::atomic<bool> polls_ = false;
  bool after_earlier_ = false;
  bool gated_ = false;
  std::optional<std::uint64_t> interval_;  ///< for a collective: see GroupState
  int forks_;
};

}  // namespace gtopk::torch_backend
