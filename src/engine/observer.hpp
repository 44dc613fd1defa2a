// Engine: notifies observers (statistics, a recorder, a profiler) of events in operations.
// Observers are called on the engine thread, in the order of events, and must neither block nor
// call the engine.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "gtopk/collective.hpp"
#include "gtopk/error.hpp"
#include "src/transport/base/clock.hpp"
#include "src/transport/base/log.hpp"

namespace gtopk::engine {

class Group;

/// An operation at the moment of an event. Views are valid during the call.
struct OperationEvent {
  Group& group;
  /// The operation's number: 0, 1, 2, ... in the order in which the engine learns of the calls.
  std::uint64_t number;
  /// The name as the user called it, such as "all_reduce".
  std::string_view name;
  /// The arguments on which ranks must agree; empty for a point-to-point message.
  const Agreement& agreement;
  /// Bytes this rank passes in or has capacity for, if the agreement does not say.
  std::uint64_t bytes;
  transport::Duration timeout;
  /// The collective's number in its group; 0 for a point-to-point message.
  std::uint64_t sequence;
  bool point_to_point;
  /// The time of the call, on the caller's thread.
  transport::TimePoint queued;
  /// The time of the start, if `ran`.
  transport::TimePoint started;
  bool ran;
  /// The phase that is ending (empty before the first), and its start.
  std::string_view phase;
  transport::TimePoint phase_began;
  /// The number of operations of the group that are running now.
  std::uint32_t in_flight;
  /// The time of the event.
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

  /// The operation was called; `event.at` is the time of the call, not of this notification.
  virtual void queued(const OperationEvent& /*event*/) {}
  /// The operation's coroutine begins.
  virtual void started(const OperationEvent& /*event*/) {}
  /// The operation enters a phase, which its algorithm names.
  virtual void phase(const OperationEvent& /*event*/, std::string_view /*name*/) {}
  /// The operation ended, and its caller is notified next. Called once for each operation that was
  /// queued, started or not. `error` is null on success.
  virtual void ended(const OperationEvent& /*event*/, const Error* /*error*/) {}
};

/// Forwards to all added observers, in the order in which they were added. If one throws, the
/// exception is logged and the others are still notified.
class Observers final : public Observer {
 public:
  void add(Observer& observer) { observers_.push_back(&observer); }
  [[nodiscard]] bool empty() const { return observers_.empty(); }
  void clear() { observers_.clear(); }
  void remove(const Observer& observer) { std::erase(observers_, &observer); }

  void queued(const OperationEvent& event) override {
    tell([&](Observer& each) { each.queued(event); });
  }
  void started(const OperationEvent& event) override {
    tell([&](Observer& each) { each.started(event); });
  }
  void phase(const OperationEvent& event, std::string_view name) override {
    tell([&](Observer& each) { each.phase(event, name); });
  }
  void ended(const OperationEvent& event, const Error* error) override {
    tell([&](Observer& each) { each.ended(event, error); });
  }

 private:
  template <class Event>
  void tell(Event event) {
    for (Observer* const observer : observers_) {
      try {
        event(*observer);
      } catch (...) {
        transport::log_thrown("an observer of operations");
      }
    }
  }

  std::vector<Observer*> observers_;
};

}  // namespace gtopk::engine
