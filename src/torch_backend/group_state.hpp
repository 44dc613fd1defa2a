// Torch backend: the state that a group's backend and its Works share: how the group ended, the
// hooks, the order of calls, and temporary extensions of timeouts. It may be used on any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "src/torch_backend/call_order.hpp"
#include "src/torch_backend/completer.hpp"
#include "src/torch_backend/torch_headers.hpp"

namespace gtopk::torch_backend {

class GroupState {
 public:
  /// torch's AbortHook: called once each time the group ends by an error or by abort().
  using AbortHook = std::function<void()>;
  /// torch's CompletionHook: gets the key of a Work that has succeeded, and milliseconds.
  using CompletionHook = std::function<void(std::uint64_t key, float duration)>;
  /// torch's onCompletionHook: called for every Work, including failed ones.
  using EndHook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  /// Returns SUCCESS, or the error that ended the group.
  [[nodiscard]] c10d::ErrorType error() const;
  /// Records a cause; the first one wins. Returns whether this was the first.
  bool note(c10d::ErrorType error);
  /// Must be called when the group starts anew.
  void forget_error();

  void add_abort_hook(std::int64_t id, AbortHook hook);
  void remove_abort_hook(std::int64_t id);
  [[nodiscard]] bool has_abort_hooks() const;
  /// Runs the abort hooks and logs their exceptions. Must not be called on the engine's thread,
  /// because hooks may take long.
  void run_abort_hooks() const;

  void add_completion_hook(std::int64_t id, CompletionHook hook);
  void remove_completion_hook(std::int64_t id);
  void completed(std::uint64_t key, float duration) const;

  void set_end_hook(EndHook hook);
  [[nodiscard]] bool has_end_hook() const;
  /// Calls the hook for one Work after the other, in this order, on one of the completer's threads.
  static void tell_end_hook(const std::shared_ptr<GroupState>& group,
                            std::shared_ptr<c10d::WorkInfo> ended, Completer& completer);

  [[nodiscard]] CallOrder& order() const { return *order_; }

  // The following counts Works that are in flight or whose end hook has not run.
  enum class Kind : std::uint8_t { kMessage, kCollective, kGated, kBarrier };
  /// Counts a Work. Returns a collective's interval, which extends from one barrier to the next; a
  /// barrier is the first of its own interval.
  std::optional<std::uint64_t> begin(Kind kind);
  /// Must be called when the engine has ended a gated collective, which then no longer waits at its
  /// gate.
  void leave_gate(std::uint64_t interval);
  /// Must be called at the end of a Work, with the result of begin().
  void end(std::optional<std::uint64_t> interval = std::nullopt);
  void wait_for_all() const;

  // Whether the collectives of earlier intervals have ended. Collectives at a gate do not count,
  // because the event that opens the gate may come after the barrier.
  [[nodiscard]] bool have_ended_before(std::uint64_t interval) const;
  void wait_for_those_before(std::uint64_t interval) const;

  /// Extends timeouts of later Works by this time, until the first of them ends.
  void extend(std::chrono::milliseconds by);
  struct Extended {
    std::chrono::milliseconds by{0};
    std::vector<std::uint64_t> first_of;  ///< extensions that end with this Work
  };
  /// Returns the extension for a new Work.
  [[nodiscard]] Extended extended();
  void end_extensions(const std::vector<std::uint64_t>& extensions);

 private:
  /// Calls the end hook for one Work after the other.
  void tell_untold();
  // The following must be called with the mutex held.
  void drop_ended_intervals();
  [[nodiscard]] bool ended_before(std::uint64_t interval) const;

  /// The number of collectives that have not ended, and how many of these are at a gate.
  struct Interval {
    std::int64_t collectives = 0;
    std::int64_t gated = 0;
  };

  struct Extension {
    std::chrono::milliseconds by;
    bool has_a_work = false;
  };

  const std::shared_ptr<CallOrder> order_ = std::make_shared<CallOrder>();
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  c10d::ErrorType error_ = c10d::ErrorType::SUCCESS;
  /// Hooks are shared because copying one may wait for the GIL, whose holder may wait for the
  /// mutex.
  std::map<std::int64_t, std::shared_ptr<const AbortHook>> abort_hooks_;
  std::map<std::int64_t, CompletionHook> completion_hooks_;
  std::shared_ptr<const EndHook> end_hook_;
  std::deque<std::shared_ptr<c10d::WorkInfo>> untold_;  ///< Works not yet reported to the end hook
  bool telling_ = false;
  std::int64_t under_way_ = 0;
  std::uint64_t first_interval_ = 0;
  std::deque<Interval> intervals_{{}};  ///< the first is the first one with a collective
  std::map<std::uint64_t, Extension> extensions_;
  std::uint64_t next_extension_ = 0;
};

}  // namespace gtopk::torch_backend
