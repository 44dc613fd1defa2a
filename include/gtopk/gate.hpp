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

/// Expects a number of arrivals: one per operation that uses the gate, and one arrive() for each
/// part of the step that is reduced elsewhere. The last arrival decides for all: the step has
/// happened if every part was finite. An operation that fails or never runs counts as a part that
/// did not happen. Thread-safe.
class Gate {
 public:
  /// Makes a gate for this many arrivals, at least 1 and the same number on all ranks. Throws
  /// Error{kInvalidArgument}.
  explicit Gate(std::uint32_t arrivals);
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  Gate(Gate&&) = delete;
  Gate& operator=(Gate&&) = delete;
  ~Gate() = default;

  /// The number of arrivals that the gate expects.
  [[nodiscard]] std::uint32_t arrivals() const { return arrivals_; }
  /// Reports one part; `happened` is true if it was finite on every rank. Does nothing once all
  /// parts have arrived.
  void arrive(bool happened);
  /// Ends arrivals: an undecided gate decides that the step has not happened. Returns the verdict;
  /// the call is idempotent.
  bool shut();
  /// Whether the step has happened; nullopt while parts are missing.
  [[nodiscard]] std::optional<bool> verdict() const;

  /// The functions that the engine calls once the gate has decided.
  using Waiters = std::list<std::function<void()>>;
  /// Calls `then` on the deciding thread unless forget() comes first; calls it at once if the gate
  /// has already decided.
  [[nodiscard]] Waiters::iterator when_decided(std::function<void()> then);
  /// Removes what when_decided() added; afterwards the function is not running and will not be
  /// called.
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
