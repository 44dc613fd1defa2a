// Public surface: a gate, at which operations wait for one another before they commit, so that the
// parts of a step have all happened or none of them has.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>

namespace gtopk {

/// Made for a number of arrivals: those of the operations that were given it, and what arrive()
/// adds for parts of the step that are reduced elsewhere. The last one decides for all: the step
/// has happened if every part was finite. An operation that fails, or is never run, arrives as one
/// that has not happened. Thread-safe.
class Gate {
 public:
  /// arrivals >= 1, the same on all ranks. Throws Error{kInvalidArgument}.
  explicit Gate(std::uint32_t arrivals);
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  Gate(Gate&&) = delete;
  Gate& operator=(Gate&&) = delete;
  ~Gate() = default;

  [[nodiscard]] std::uint32_t arrivals() const { return arrivals_; }
  /// One part is there. `happened`: finite on every rank. More arrivals than the gate was made for
  /// change nothing.
  void arrive(bool happened);
  /// Nothing more will arrive: what waits does not commit. Returns the verdict, which a decided
  /// gate keeps.
  bool shut();
  /// Whether the step has happened; none while parts are missing.
  [[nodiscard]] std::optional<bool> verdict() const;

  // For the engine.
  using Waiters = std::list<std::function<void()>>;
  /// Calls `then` on the deciding thread, unless it is forgotten before; at once if decided.
  [[nodiscard]] Waiters::iterator when_decided(std::function<void()> then);
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
