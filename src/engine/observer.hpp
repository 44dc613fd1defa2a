// Engine: what happens to operations, told to whoever wants to know: statistics, a recorder, a
// profiler. Observers are told on the engine's thread, in the order in which it happened; they must
// neither block nor call the engine.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "gtopk/collective.hpp"
#include "gtopk/error.hpp"
#include "src/transport/base/clock.hpp"

namespace gtopk::engine {

class Group;

/// An operation at the moment of an event. Views are valid during the call.
struct OperationEvent {
  Group& group;
  /// Of the operation: 0, 1, 2, ... in the order in which the engine is told of their calls.
  std::uint64_t number;
  /// As the user called it: "all_reduce".
  std::string_view name;
  /// What ranks must agree on; empty for a point-to-point message.
  const Agreement& agreement;
  /// What this rank hands in or has room for, where the agreement does not say it.
  std::uint64_t bytes;
  transport::Duration timeout;
  /// Of the collective in its group; 0 for a point-to-point message.
  std::uint64_t sequence;
  bool point_to_point;
  /// When it was called, on the caller's thread.
  transport::TimePoint queued;
  /// When it started, if `ran`.
  transport::TimePoint started;
  bool ran;
  /// The phase that it was in until now, empty before the first, and since when.
  std::string_view phase;
  transport::TimePoint phase_began;
  /// Operations of the group that run now.
  std::uint32_t in_flight;
  /// When it happened.
  transport::TimePoint at;
};

class Observer {
 public:
  Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  Observer(Observer&&) = delete;
  Observer& operator=(Observer&&) = delete;
  virtual ~Observer() = default;

  /// It has been called: `event.at` is the time of the call, not of this.
  virtual void queued(const OperationEvent& /*event*/) {}
  /// Its coroutine begins.
  virtual void started(const OperationEvent& /*event*/) {}
  /// It enters a phase, one of those that its algorithm names.
  virtual void phase(const OperationEvent& /*event*/, std::string_view /*name*/) {}
  /// Its caller is told next; once for each that was queued, started or not. `error`: null when it
  /// succeeded.
  virtual void ended(const OperationEvent& /*event*/, const Error* /*error*/) {}
};

/// Tells each of them, in the order in which they were added.
class Observers final : public Observer {
 public:
  void add(Observer& observer) { observers_.push_back(&observer); }
  [[nodiscard]] bool empty() const { return observers_.empty(); }
  void clear() { observers_.clear(); }
  void remove(const Observer& observer) { std::erase(observers_, &observer); }

  void queued(const OperationEvent& event) override {
    for (Observer* const observer : observers_) {
      observer->queued(event);
    }
  }
  void started(const OperationEvent& event) override {
    for (Observer* const observer : observers_) {
      observer->started(event);
    }
  }
  void phase(const OperationEvent& event, std::string_view name) override {
    for (Observer* const observer : observers_) {
      observer->phase(event, name);
    }
  }
  void ended(const OperationEvent& event, const Error* error) override {
    for (Observer* const observer : observers_) {
      observer->ended(event, error);
    }
  }

 private:
  std::vector<Observer*> observers_;
};

}  // namespace gtopk::engine
