#include "src/torch_backend/call_order.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/torch_backend/future_callbacks.hpp"
#include "src/torch_backend/gil.hpp"
#include "src/torch_backend/signals.hpp"

namespace gtopk::torch_backend {
namespace {

CallOrder::EntryPointer& calling_here() {
  thread_local CallOrder::EntryPointer entry;
  return entry;
}

}  // namespace

struct CallOrder::Trash {
  std::vector<Entry::Tracked> futures;
  std::vector<Deferred> deferred;
};

class CallOrder::Lock {
 public:
  explicit Lock(CallOrder& order) : order_(order), lock_(order.mutex_) {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  Lock(Lock&&) = delete;
  Lock& operator=(Lock&&) = delete;
  ~Lock() {
    const Trash trash = std::exchange(*order_.trash_, {});
    lock_.unlock();
  }

 private:
  CallOrder& order_;
  std::unique_lock<std::mutex> lock_;
};

CallOrder::CallOrder() : trash_(std::make_unique<Trash>()) {}
CallOrder::~CallOrder() = default;

const CallOrder::EntryPointer& CallOrder::calling() { return calling_here(); }

CallOrder::Within::Within(EntryPointer entry)
    : before_(std::exchange(calling_here(), std::move(entry))) {}

CallOrder::Within::~Within() { calling_here() = std::move(before_); }

CallOrder::InFlight::InFlight(EntryPointer caller) : caller_(std::move(caller)) {
  if (caller_) {
    ++caller_->in_flight;
  }
}

CallOrder::InFlight::~InFlight() {
  if (caller_) {
    --caller_->in_flight;
  }
}

CallOrder::Entries& CallOrder::called_by(const EntryPointer& parent) {
  return parent ? parent->called : root_;
}

CallOrder::Entry::Entry(std::shared_ptr<CallOrder> its_order, const EntryPointer& caller)
    : order(std::move(its_order)) {
  if (!caller) {
    return;
  }
  if (caller->has_place) {
    callers.push_back(caller);
  }
  std::ranges::copy_if(caller->callers, std::back_inserter(callers), [](const auto& each) {
    const EntryPointer one = each.lock();
    return one && one->has_place;
  });
}

CallOrder::EntryPointer CallOrder::caller_of(const EntryPointer& entry) const {
  const auto is_it = [this](const EntryPointer& each) {
    return each && each->order.get() == this && each->place;
  };
  if (!entry || is_it(entry)) {
    return entry;
  }
  for (const std::weak_ptr<Entry>& each : entry->callers) {
    if (EntryPointer one = each.lock(); is_it(one)) {
      return one;
    }
  }
  return nullptr;
}

bool CallOrder::Entry::awaits_callbacks(const Entry* apart_from) const {
  const auto is_shared = [apart_from](const Tracked& each) {
    return apart_from != nullptr &&
           std::ranges::find(apart_from->futures, each.future, &Tracked::future) !=
               apart_from->futures.end();
  };
  return running || is_parked() || std::ranges::any_of(futures, [&](const Tracked& each) {
           return callbacks_of(*each.future) > each.ours && !is_shared(each);
         });
}

bool CallOrder::has_callbacks(const Entry& entry, const Entry* apart_from) {
  return entry.awaits_callbacks(apart_from) ||
         std::ranges::any_of(entry.called, [](const auto& each) { return is_pending(*each); });
}

bool CallOrder::is_pending(const Entry& entry, const Entry* apart_from) {
  return entry.is_deferred() || has_callbacks(entry, apart_from);
}

bool CallOrder::waits(const EntryPointer& parent, const Entry* entry) const {
  if (closed_) {
    return false;
  }
  const bool released = entry != nullptr && entry->released;
  for (const EntryPointer& each : parent ? parent->called : root_) {
    if (each.get() == entry) {
      break;
    }
    // A released entry may overtake callbacks and the calls that they made, but not earlier calls
    // of its own caller. Parts of one window do not wait for each other because of its callbacks.
    if (released ? each->is_deferred() && each->nesting <= entry->nesting
                 : is_pending(*each, entry)) {
      return true;
    }
  }
  return parent && is_behind(*parent);
}

bool CallOrder::is_behind(const Entry& entry) {
  for (const EntryPointer& each : entry.parent ? entry.parent->called : entry.order->root_) {
    if (each.get() == &entry) {
      break;
    }
    const bool excused = entry.excused && each->thread && each->thread->still_asleep();
    if (is_pending(*each) && !excused) {
      return true;
    }
  }
  return entry.parent && is_behind(*entry.parent);
}

bool CallOrder::has_to_wait() {
  if (tracked_.load(std::memory_order_acquire) == 0) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  return waits(caller_of(calling()), nullptr);
}

CallOrder::EntryPointer CallOrder::append(Completer& completer) {
  auto entry = std::make_shared<Entry>(shared_from_this(), calling());
  entry->parent = caller_of(calling());
  entry->completer = &completer;
  // Collectives that have no callbacks yet may get some, which are then attached after this call.
  Entries& siblings = called_by(entry->parent);
  const auto last = std::find_if(siblings.rbegin(), siblings.rend(),
                                 [](const EntryPointer& each) { return is_pending(*each); });
  entry->place = siblings.insert(last.base(), entry);
  entry->has_place = true;
  ++tracked_;
  start_watch(completer);
  return entry;
}

CallOrder::EntryPointer CallOrder::defer(Completer& completer, Deferred deferred) {
  EntryPointer entry;
  {
    const std::lock_guard lock(mutex_);
    entry = append(completer);
    entry->deferred = std::move(deferred);
  }
  return entry;
}

CallOrder::EntryPointer CallOrder::wait_for_turn(Completer& completer, Clock::time_point deadline) {
  const WithoutGil without_gil;
  std::unique_lock lock(mutex_);
  const EntryPointer entry = append(completer);
  entry->holds_thread = true;
  const auto give_up = [&] {
    lock.unlock();
    started(entry, 0);
    advance();
  };
  bool in_time = false;
  try {
    in_time =
        wait_until(changed_, lock, deadline, [&] { return !waits(entry->parent, entry.get()); });
  } catch (...) {  // a signal handler has raised while the lock was released
    started(entry, 0);
    advance();
    throw;
  }
  entry->starting = true;
  if (!in_time) {
    give_up();
    C10_THROW_ERROR(DistBackendError,
                    "gtopk: a collective did not start within its timeout: callbacks of an earlier "
                    "collective's future, which come first, have not returned");
  }
  return entry;
}

void CallOrder::started(const EntryPointer& entry, std::uint64_t number) {
  const Lock lock(*this);
  entry->number = number;
  if (entry->deferred) {
    trash_->deferred.push_back(std::move(*entry->deferred));
    entry->deferred.reset();
  }
  entry->holds_thread = entry->starting = false;
  if (entry->futures.empty()) {
    untrack(*entry);
  }
}

CallOrder::EntryPointer CallOrder::track(std::uint64_t number, const EntryPointer& caller,
                                         c10::intrusive_ptr<Future> future) {
  const std::lock_guard lock(mutex_);
  if (closed_) {
    return nullptr;
  }
  auto entry = std::make_shared<Entry>(shared_from_this(), caller);
  entry->parent = caller_of(caller);
  entry->number = number;
  entry->futures.push_back({std::move(future), 1});
  Entries& siblings = called_by(entry->parent);
  // Deferred entries were called before its callbacks are attached.
  const auto at = std::ranges::find_if(
      siblings, [number](const EntryPointer& each) { return each->number > number; });
  entry->place = siblings.insert(at, entry);
  entry->has_place = true;
  ++tracked_;
  return entry;
}

bool CallOrder::also_track(const EntryPointer& entry, c10::intrusive_ptr<Future> future,
                           std::size_t ours) {
  const std::lock_guard lock(entry->order->mutex_);
  if (!entry->place) {
    return false;
  }
  if (!entry->futures.empty()) {
    entry->futures.front().ours += ours;
  }
  entry->futures.push_back({std::move(future), entry->futures.empty() ? 1U : 0U});
  return true;
}

void CallOrder::untrack(Entry& entry) {
  if (!entry.place) {
    return;
  }
  std::ranges::move(std::exchange(entry.futures, {}), std::back_inserter(trash_->futures));
  const Entries::iterator place = *std::exchange(entry.place, std::nullopt);
  entry.has_place = false;
  Entries& siblings = called_by(entry.parent);
  // Calls made by its callbacks take its place; they may be deferred, and may still get callbacks.
  for (const EntryPointer& each : entry.called) {
    each->parent = entry.parent;
    each->nesting += entry.nesting + 1;
  }
  siblings.splice(place, entry.called);
  siblings.erase(place);
  --tracked_;
}

bool CallOrder::may_leave(const Entry& entry) {
  if (!entry.returned || entry.awaits_callbacks()) {
    return false;
  }
  // A released entry stays until the calls of its callbacks are done, and holds these back, because
  // callbacks before it may not have returned. While something is in flight, the watch must see
  // that it does not wait.
  return (!entry.released && entry.in_flight == 0) || !has_callbacks(entry);
}

void CallOrder::settle(const EntryPointer& parent) {
  Entries& entries = called_by(parent);
  for (auto next = entries.begin(); next != entries.end();) {
    const EntryPointer entry = *next++;  // which removes itself
    settle(entry);
    if (may_leave(*entry)) {
      untrack(*entry);
    }
  }
}

void CallOrder::ended(const EntryPointer& entry, Completer& completer,
                      std::function<void()> complete) {
  {
    const std::lock_guard lock(mutex_);
    entry->completer = &completer;
    if (has_callbacks(*entry) && waits(entry->parent, entry.get())) {
      entry->complete = std::move(complete);
      start_watch(completer);
      return;
    }
    entry->running = true;
  }
  run(entry, complete);
}

void CallOrder::run(const EntryPointer& entry, const std::function<void()>& complete) {
  {
    const std::lock_guard lock(mutex_);
    entry->thread.emplace();
  }
  try {
    const Within within(entry);
    complete();
  } catch (...) {
    has_run(entry);
    throw;
  }
  has_run(entry);
}

void CallOrder::has_run(const EntryPointer& entry) {
  {
    const std::lock_guard lock(mutex_);
    entry->thread.reset();
    entry->running = false;
    entry->returned = true;
  }
  advance();
}

void CallOrder::find_ready(const EntryPointer& parent, Ready& ready, EntryPointer& next) {
  for (const EntryPointer& each : called_by(parent)) {
    if (each->is_parked() && !waits(parent, each.get())) {
      each->running = true;
      ready.emplace_back(each, std::exchange(each->complete, nullptr));
    } else if (each->deferred && !each->starting && !next && !waits(parent, each.get())) {
      each->starting = true;
      next = each;
    }
    find_ready(each, ready, next);
  }
}

void CallOrder::run_soon(Ready ready) {
  for (auto& [entry, complete] : ready) {
    Completer& completer = *entry->completer;
    completer.run([entry = std::move(entry), complete = std::move(complete)] {
      entry->order->run(entry, complete);
    });
  }
}

void CallOrder::advance() {
  if (tracked_.load(std::memory_order_acquire) == 0) {
    changed_.notify_all();
    return;
  }
  for (;;) {
    Ready ready;
    EntryPointer next;
    {
      const Lock lock(*this);
      settle(nullptr);
      find_ready(nullptr, ready, next);
    }
    run_soon(std::move(ready));
    if (!next) {
      break;
    }
    started(next, next->deferred->start(nullptr));
  }
  changed_.notify_all();
}

void CallOrder::wanted(const EntryPointer& entry) {
  {
    const std::lock_guard lock(mutex_);
    if (!entry->place || (entry->parent == caller_of(calling()) && entry->nesting == 0)) {
      return;
    }
    entry->released = true;
    for (const EntryPointer& each : called_by(entry->parent)) {
      if (each == entry) {
        break;
      }
      each->released = each->released || (each->is_deferred() && each->nesting <= entry->nesting);
    }
  }
  advance();
}

void CallOrder::close(const std::exception_ptr& error) {
  Entries deferred;
  Ready ready;
  const std::function<void(const Entries&)> gather = [&](const Entries& entries) {
    for (const EntryPointer& each : entries) {
      if (each->deferred && !each->starting) {
        each->starting = true;
        deferred.push_back(each);
      } else if (each->is_parked()) {
        each->running = true;
        ready.emplace_back(each, std::exchange(each->complete, nullptr));
      }
      gather(each->called);
    }
  };
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    gather(root_);
  }
  changed_.notify_all();
  for (const EntryPointer& each : deferred) {
    started(each, each->deferred->start(error));
  }
  run_soon(std::move(ready));
  advance();
}

void CallOrder::reopen() {
  const std::lock_guard lock(mutex_);
  closed_ = false;
}

}  // namespace gtopk::torch_backend
