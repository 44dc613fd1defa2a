#include "src/torch_backend/work.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "src/torch_backend/errors.hpp"
#include "src/torch_backend/forks.hpp"
#include "src/torch_backend/signals.hpp"

namespace gtopk::torch_backend {

namespace {

std::atomic<std::uint64_t> works_made{0};

/// Returns the exception for Python. Sets `ends_group` if this is the error that ended the group.
std::exception_ptr for_python(const std::exception_ptr& error, bool point_to_point,
                              GroupState& group, bool& ends_group) {
  if (!error) {
    return nullptr;
  }
  try {
    try {
      std::rethrow_exception(error);
    } catch (const gpu::Failure& failure) {
      C10_THROW_ERROR(DistBackendError, std::string("gtopk: ") + failure.what());
    } catch (const Error& known) {
      // A send or receive that times out without a match does not end the group.
      if (!point_to_point || known.kind() != ErrorKind::kTimeout || known.ended_group()) {
        ends_group = group.note(error_type(known.kind()));
      }
      rethrow_for_python(known);
    }
  } catch (...) {
    return std::current_exception();
  }
}

/// How long a waiter polls, yielding its core each time, before it sleeps. Waking a sleeping thread
/// takes longer than a small collective.
constexpr std::chrono::microseconds kSpin(50);

/// How long the error of a failed device is held back for the operation's error, which says more.
constexpr std::chrono::milliseconds kFailureIsKnown = 3 * gpu::Watch::kPeriod;

/// Returns when the operation has ended, or after kSpin.
void await_soon(const std::atomic<bool>& over) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (!over.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < end) {
    sched_yield();
  }
}

/// The completer for tensors that this thread must not free itself, because freeing them may run
/// Python.
Completer*& let_go_through() {
  thread_local Completer* completer = nullptr;
  return completer;
}

/// Lives on the engine thread while Works may be released.
class LetGo {
 public:
  explicit LetGo(Completer& completer) { let_go_through() = &completer; }
  LetGo(const LetGo&) = delete;
  LetGo& operator=(const LetGo&) = delete;
  LetGo(LetGo&&) = delete;
  LetGo& operator=(LetGo&&) = delete;
  ~LetGo() { let_go_through() = nullptr; }
};

}  // namespace

GtopkWork::GtopkWork(int rank, c10d::OpType type, const char* title,
                     const std::vector<at::Tensor>& inputs, std::vector<Contiguous> memory,
                     std::vector<at::Tensor> result)
    : TimedWork(rank, type, title, inputs),
      memory_(std::move(memory)),
      result_(std::move(result)),
      device_(DeviceCall::of(inputs, memory_, result_)),
      key_(works_made++),
      forks_(forks()) {}

struct GtopkWork::Held {
  std::vector<Contiguous> memory;
  std::vector<at::Tensor> result;
  std::function<void()> finish;
  c10::intrusive_ptr<Future> future;
  CallOrder::EntryPointer entry;
  std::unique_ptr<DeviceCall> device;

  void let_go() noexcept {
    if (device && device->has_failed()) {
      keep();
      return;
    }
    // To destroy an event, torch makes its device current and then restores the former one. On a
    // thread that has used no device, that would be device 0, where a context takes about 500 MB.
    c10::OptionalDeviceGuard now_current;
    try {
      if (device) {
        now_current.reset_device(device->device());
      }
    } catch (const c10::Error&) {
      keep();
      return;
    }
    *this = {};
  }

 private:
  /// Leaks the objects, because torch throws when it frees events or pinned memory of a device that
  /// has failed.
  void keep() { static_cast<void>(std::make_unique<Held>(std::move(*this)).release()); }
};

GtopkWork::~GtopkWork() {
  Completer* const completer = let_go_through();
  const bool empty =
      memory_.empty() && result_.empty() && !finish_ && !future_ && !entry_ && !device_;
  if (empty || (completer == nullptr && !device_)) {
    return;
  }
  Held held{std::move(memory_), std::move(result_), std::move(finish_),
            std::move(future_), std::move(entry_),  std::move(device_)};
  if (completer == nullptr) {
    held.let_go();
  } else {
    completer->run([kept = std::make_shared<Held>(std::move(held))] { kept->let_go(); });
  }
}

bool GtopkWork::isCompleted() {
  want();
  const std::lock_guard lock(ending_->mutex);
  return ended() && (!device_ || exception_ || device_->has_results());
}

bool GtopkWork::wait_on_stream() {
  try {
    if (!device_->await(memory_)) {
      return false;
    }
    device_->block_current_stream();
  } catch (const c10::Error&) {
    raise_instead(std::current_exception());
  }
  {
    const std::lock_guard lock(ending_->mutex);
    if (ending_->completed) {
      raise();
    }
  }
  unseen_->raise();
  leave_registry();
  return true;
}

void GtopkWork::raise_instead(const std::exception_ptr& of_device) {
  std::unique_lock lock(ending_->mutex);
  if (wait_until(ending_->told, lock, Clock::now() + kFailureIsKnown, [this] { return ended(); })) {
    raise();
  }
  std::rethrow_exception(of_device);
}

void GtopkWork::leave_registry() {
  if (c10d::allow_inflight_collective_as_graph_input()) {
    c10d::unregister_work(c10::intrusive_ptr<Work>::unsafe_reclaim_from_nonowning(this));
  }
}

void GtopkWork::raise() const {
  if (!exception_) {
    return;
  }
  if (device_) {
    unseen_->forget(exception_);
  }
  std::rethrow_exception(exception_);
}

bool GtopkWork::wait(std::chrono::milliseconds timeout) {
  want();
  const bool asks_who = opType_ == c10d::OpType::RECVANYSOURCE;  // the caller asks right afterwards
  if (device_ && timeout == kNoTimeout && !asks_who && wait_on_stream()) {
    return true;
  }
  if (polls_) {
    await_soon(ending_->over);
  }
  std::unique_lock lock(ending_->mutex);
  const auto has_ended = [this] { return ended(); };
  if (!ended() && forks_ != forks()) {
    try {
      check_not_forked_since(forks_);
    } catch (const Error& error) {
      rethrow_for_python(error);
    }
  }
  const auto longest = timeout == kNoTimeout ? kLongestTimeout : std::min(timeout, kLongestTimeout);
  TORCH_CHECK(wait_until(ending_->told, lock, Clock::now() + longest, has_ended),
              "Operation timed out!");
  leave_registry();
  raise();
  if (device_) {
    unseen_->raise();
    device_->block_current_stream();
  }
  return true;
}

int GtopkWork::sourceRank() const {
  TORCH_CHECK_VALUE(opType_ == c10d::OpType::RECV || opType_ == c10d::OpType::RECVANYSOURCE,
                    "gtopk: only a receive has a source rank");
  return static_cast<int>(source_);
}

TimedWork::Span GtopkWork::span() const {
  const std::lock_guard lock(ending_->mutex);
  TORCH_CHECK(ending_->completed,
              "gtopk: the duration of an operation is known only once it has ended");
  return {began_, over_at_};
}

Call GtopkWork::call(Completer& completer, std::chrono::milliseconds timeout, uint64_t sequence,
                     std::shared_ptr<GroupState> group, std::shared_ptr<UnseenError> unseen) {
  sequence_ = sequence;
  group_ = std::move(group);
  unseen_ = std::move(unseen);
  completer_ = &completer;
  GroupState::Extended extended = group_->extended();
  const auto longest = std::min(timeout, kLongestTimeout) + std::min(extended.by, kLongestTimeout);
  timeout_ = longest;
  extensions_ = std::move(extended.first_of);
  using Kind = GroupState::Kind;
  interval_ = group_->begin(after_earlier_           ? Kind::kBarrier
                            : gated_                 ? Kind::kGated
                            : c10d::isP2POp(opType_) ? Kind::kMessage
                                                     : Kind::kCollective);
  began_ = Clock::now();
  auto self = c10::intrusive_ptr<GtopkWork>::unsafe_reclaim_from_nonowning(this);
  Call call;
  if (device_) {
    call.input = device_->input();
  }
  call.done = [self, &completer](const std::exception_ptr& error) mutable {
    GtopkWork& work = *self;
    work.operation_ended(completer, error, std::move(self));
  };
  // Torch may drop the Work at once; the engine keeps it, and its tensors, for as long as the
  // network reads or writes them.
  call.keepalive = std::shared_ptr<void>(nullptr, [self, &completer](void*) mutable {
    const LetGo let_go(completer);
    self.reset();
  });
  call.timeout = longest;
  in_flight_.emplace(caller_);
  return call;
}

void GtopkWork::begin(bool polling_pays) {
  polls_ = polling_pays;
  if (device_) {
    device_->begin();
  }
}

void GtopkWork::deferred(CallOrder::EntryPointer entry) {
  const std::lock_guard lock(ending_->mutex);
  entry_ = std::move(entry);
}

void GtopkWork::not_taken() {
  in_flight_.reset();
  group_->end_extensions(extensions_);
  if (gated_) {
    group_->leave_gate(*interval_);
  }
  group_->end(interval_);
}

void GtopkWork::operation_ended(Completer& completer, const std::exception_ptr& error,
                                Self self) noexcept {
  const bool on_device = device_ && !device_->close_copying();
  if (device_) {
    device_->ended();
  }
  if (gated_) {
    group_->leave_gate(*interval_);
  }
  const bool copies = finish_ || on_device || std::ranges::any_of(memory_, &Contiguous::is_copy);
  if (!error && after_earlier_ && !group_->have_ended_before(*interval_)) {
    // In the engine the operation has ended, but results may still have to be copied to their
    // destination.
    completer.run([self = std::move(self)]() mutable {
      self->group_->wait_for_those_before(*self->interval_);
      finish(end(std::move(self), nullptr));
    });
    return;
  }
  if (!error && copies) {
    completer.run([self = std::move(self)]() mutable {
      GtopkWork& work = *self;
      work.copy_back(std::move(self));
    });
    return;
  }
  if (error) {
    outcome_ = outcome_of(error);
  }
  bool ends_group = false;
  const std::exception_ptr seen = for_python(error, c10d::isP2POp(opType_), *group_, ends_group);
  if (ends_group && group_->has_abort_hooks()) {
    // Hooks run before waiters continue, and may take any time.
    completer.run([self = std::move(self), seen]() mutable {
      self->group_->run_abort_hooks();
      finish(end(std::move(self), seen));
    });
    return;
  }
  if (recordFunctionEndCallback_) {
    // This callback is the profiler's. It restores the caller's state, for which it may wait for
    // the GIL.
    completer.run([self = std::move(self), seen]() mutable { finish(end(std::move(self), seen)); });
    return;
  }
  const LetGo let_go(completer);
  if (Self kept = end(std::move(self), seen)) {
    completer.run([kept = std::move(kept)]() mutable { finish(std::move(kept)); });
  }
}

void GtopkWork::copy_back(Self self) {
  std::exception_ptr error;
  c10::OptionalDeviceGuard now_current;
  try {
    if (device_) {
      now_current.reset_device(device_->device());
    }
    for (const Contiguous& each : memory_) {
      each.copy_back();
    }
    if (device_ && !device_->copies_ahead()) {
      device_->copy_back(memory_);
    }
    if (const auto finish = std::exchange(finish_, nullptr)) {
      finish();
    }
  } catch (...) {
    error = std::current_exception();
    outcome_ = c10d::WorkResult::UNKNOWN;
  }
  finish(end(std::move(self), error));
}

GtopkWork::Self GtopkWork::end(Self self, std::exception_ptr error) {
  const std::shared_ptr<Ending> ending = self->ending_;
  const std::shared_ptr<GroupState> group = self->group_;
  const std::optional<std::uint64_t> interval = self->interval_;
  const std::optional<CallOrder::InFlight> in_flight = std::move(self->in_flight_);
  const Clock::time_point over_at = Clock::now();
  self->tell_group(error != nullptr, over_at);
  // Do this before a waiter continues and calls the operation that ends next.
  if (const std::shared_ptr<c10d::WorkInfo> info = self->info_for_hook(over_at)) {
    GroupState::tell_end_hook(group, info, *self->completer_);
  }
  if (const auto end_of_profile = std::exchange(self->recordFunctionEndCallback_, nullptr)) {
    try {
      end_of_profile();
    } catch (const std::exception& failure) {
      LOG(ERROR) << "gtopk: the profiler threw at the end of an operation: " << failure.what();
    }
  }
  {
    const std::lock_guard lock(ending->mutex);
    GtopkWork& work = *self;
    work.over_at_ = over_at;
    {
      const std::lock_guard of_torch(work.mutex_);
      work.completed_ = true;
      work.exception_ = std::move(error);
    }
    if (!work.future_) {
      // This Work may never be waited for, so the next wait() in the group raises the error.
      if (work.exception_ && work.device_ && work.device_->copies_ahead()) {
        work.unseen_->note(work.exception_);
      }
      self.reset();
    }
    ending->completed = true;
    ending->over.store(true, std::memory_order_release);
  }
  ending->told.notify_all();
  group->end(interval);
  return self;
}

void GtopkWork::tell_group(bool failed, Clock::time_point over_at) {
  group_->end_extensions(extensions_);
  if (!failed) {
    const std::chrono::duration<float, std::milli> took = over_at - began_;
    group_->completed(key_, took.count());
  }
}

std::shared_ptr<c10d::WorkInfo> GtopkWork::info_for_hook(Clock::time_point over_at) const {
  if (!group_->has_end_hook()) {
    return nullptr;
  }
  return std::make_shared<c10d::WorkInfo>(opType_, sequence_, began_, over_at,
                                          std::chrono::duration<float>(over_at - began_));
}

}  // namespace gtopk::torch_backend
