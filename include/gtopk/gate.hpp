/// @file
/// A gate at which operations wait for each other before they commit, so that either all parts of a
/// step happen or none does.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>

namespace gtopk {

/// Expects a number of arrivals: one per operation that was given the gate, and one arrive() for
/// each part of the step that is reduced elsewhere. The last arrival decides for all: the step has
/// happened if every part was finite. An operation that fails, or never runs, counts as not
/// happened. Thread-safe.
class Gate {
 public:
  /// arrivals >= 1, the same on all ranks. Throws Error{kInvalidArgument}.
  explicit Gate(std::uint32_t arrivals);
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  Gate(Gate&&) = delete;
  Gate& operator=(Gate&&) = delete;
  ~Gate() = default;

  /// The number of arrivals that it was made for.
  [[nodiscard]] std::uint32_t arrivals() const { return arrivals_; }
  /// Reports one part; `happened`: whether it was finite on every rank. A no-op once all have
  /// arrived.
  void arrive(bool happened);
  /// Ends arrivals: an undecided gate decides that the step has not happened. Returns the verdict;
  /// idempotent.
  bool shut();
  /// Whether the step has happened; nullopt while parts are missing.
  [[nodiscard]] std::optional<bool> verdict() const;

  /// Used by the engine: what to call once the gate has decided.
  using Waiters = std::list<std::function<void()>>;
  /// Calls `then` on the deciding thread unless forget() comes first; at once if already decided.
  [[nodiscard]] Waiters::iterator when_decided(std::function<void()> then);
  /// Removes what when_decided() added; afterwards it is neither running nor called again.
  void forget(Waiters::iterator waiter);

 private:
  void decide(bool happened);

  const std::uint32_t arrivals_;
  mutable std::mutex mutex_;
  std::uint32_t missing_;
  bool all_happened_ = true;
  std::optional<bool> verdict_;
  Waiters waiters_;
};

}  // namespace gtopk
