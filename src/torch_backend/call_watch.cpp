// Torch backend: the watch of the order of calls while something waits. It finds callbacks that
// wait for something after them, and collectives that are late.
#include <algorithm>
#include <utility>

#include "src/torch_backend/call_order.hpp"

namespace gtopk::torch_backend {
namespace {

constexpr std::chrono::milliseconds kLookEvery(100);
/// A thread that has slept for this many looks waits for something.
constexpr int kLooks = 10;
/// The watch ends after this many looks at which nothing waits.
constexpr int kLinger = 20;

}  // namespace

void CallOrder::start_watch(Completer& completer) {
  if (!closed_ && !std::exchange(watching_, true)) {
    completer.run([self = shared_from_this()] { self->watch(); });
  }
}

void CallOrder::watch() {
  std::unique_lock lock(mutex_);
  for (int idle = 0; idle < kLinger;) {
    if (changed_.wait_for(lock, kLookEvery, [this] { return closed_; })) {
      break;
    }
    idle = any_waits(root_) ? 0 : idle + 1;
    if (const Deferred* const found = first_late(root_, any_in_flight(root_))) {
      const auto late = found->late;
      lock.unlock();
      late();
      lock.lock();
      continue;
    }
    bool all_idle = true;
    if (idle == 0 && release_next(root_, all_idle)) {
      lock.unlock();
      advance();
      lock.lock();
    }
  }
  watching_ = false;
}

bool CallOrder::any_waits(const Entries& entries) {
  return std::ranges::any_of(entries, [](const EntryPointer& each) {
    return each->is_deferred() || each->is_parked() || any_waits(each->called);
  });
}

/// The state of the callbacks of some entries, in order, up to one entry.
struct CallOrder::Seen {
  bool any = false;        ///< some callbacks have begun
  bool all_idle = true;    ///< all begun callbacks wait for something later
  bool any_awake = false;  ///< some callbacks have run since the last look
  std::vector<Entry*> sleepers;

  /// Whether an entry may start before these callbacks.
  [[nodiscard]] bool allow() const { return any && all_idle; }
  bool wake() {
    for (Entry* const each : sleepers) {
      each->thread->restart();
    }
    return true;
  }
};

/// Lets one entry start that only idle callbacks hold up. Entries are released one by one because
/// that entry may be what the callbacks wait for. `idle` tells whether all callbacks below wait for
/// something that is not below.
bool CallOrder::release_next(const Entries& entries, bool& idle) {
  Seen before;
  for (const EntryPointer& each : entries) {
    bool below_idle = true;
    if (release_next(each->called, below_idle)) {
      return true;
    }
    const bool held_up = (each->is_deferred() || each->is_parked()) && !each->released;
    if (held_up && before.allow()) {
      each->released = true;
      return before.wake();
    }
    each->excused = each->excused && !before.any_awake;
    if (each->running && !each->excused && before.allow() && any_waits(each->called)) {
      each->excused = true;
      return before.wake();
    }
    if (each->running || each->returned) {
      const int looks = each->thread ? each->thread->look() : kLooks;
      const bool sleeps = looks >= kLooks && each->in_flight == 0 && below_idle;
      before.any = true;
      before.any_awake = before.any_awake || looks == 0;
      before.all_idle = before.all_idle && sleeps;
      if (each->thread) {
        before.sleepers.push_back(each.get());
      }
      idle = idle && sleeps;
    } else if (held_up || has_callbacks(*each)) {
      before.all_idle = false;
      idle = idle && held_up;
    }
  }
  return false;
}

/// Whether one of the entries, or something that a callback called, is in flight.
bool CallOrder::any_in_flight(const Entries& entries) {
  return std::ranges::any_of(entries, [](const EntryPointer& each) {
    const bool has_ended = each->running || each->returned || each->is_parked();
    return each->in_flight > 0 || !(each->is_deferred() || has_ended) ||
           any_in_flight(each->called);
  });
}

const CallOrder::Deferred* CallOrder::first_late(const Entries& entries, bool in_flight) {
  const Clock::time_point now = Clock::now();
  for (const EntryPointer& each : entries) {
    if (in_flight) {
      each->stuck_since = now;
    }
    if (each->deferred && !each->starting && now - each->stuck_since >= each->deferred->timeout) {
      return &*each->deferred;
    }
    if (const Deferred* const below = first_late(each->called, in_flight)) {
      return below;
    }
  }
  return nullptr;
}

}  // namespace gtopk::torch_backend
