// Torch backend: how a group's backend calls the core: at once or, if callbacks come first, when
// the call's turn comes.
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "src/torch_backend/backend.hpp"
#include "src/torch_backend/errors.hpp"

namespace gtopk::torch_backend {
namespace {

using c10d::OpType;

CallOrder::Clock::time_point after(std::chrono::milliseconds timeout) {
  return CallOrder::Clock::now() + std::min(timeout, kLongestTimeout);
}

}  // namespace

c10::intrusive_ptr<c10d::Work> GtopkBackend::run(c10::intrusive_ptr<GtopkWork> work,
                                                 std::chrono::milliseconds timeout,
                                                 const Make& make, const CallExtras& extras) {
  check_not_forked();
  const bool numbered = !c10d::isP2POp(work->retrieveOpType());
  std::unique_lock lock(mutex_);
  check_member();
  if (timeout == c10d::kUnsetTimeout) {
    timeout = options_->timeout;
  }
  bool in_turn = false;
  try {
    Collective collective = make();
    in_turn = numbered && state_->order().has_to_wait();
    if (!in_turn) {
      start(*work, timeout, std::move(collective), extras);
    } else if (work->on_device()) {
      start_in_turn(lock, *work, timeout, std::move(collective), extras);
    } else {
      defer(work, timeout, std::move(collective), extras);
    }
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
  lock.unlock();
  const Works let_go = window_.note(work);  // may start deferred calls, which take the lock
  if (in_turn) {
    state_->order().advance();
  }
  return work;
}

std::uint64_t GtopkBackend::start(GtopkWork& work, std::chrono::milliseconds timeout,
                                  Collective collective, const CallExtras& extras) {
  const bool numbered = !c10d::isP2POp(work.retrieveOpType());
  Call call = work.call(membership_->runtime->completer, timeout, numbered ? sequence_ + 1 : 0,
                        state_, unseen_);
  if (extras.keepalive) {
    call.keepalive = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(
        std::move(call.keepalive), extras.keepalive);
  }
  std::uint64_t number = 0;
  try {
    work.watch_device(ending_group());
    if (work.retrieveOpType() == OpType::SEND) {
      keep_order(call, last_sent_);
    } else if (!numbered) {
      keep_order(call, last_received_);
    }
    number = membership_->communicator.run(std::move(collective), std::move(call));
  } catch (...) {
    work.not_taken();
    throw;
  }
  if (extras.number != nullptr) {
    *extras.number = number;
  }
  if (numbered) {
    ++sequence_;  // the core has counted too, and begin() may throw
  }
  work.begin(membership_->communicator.polling_pays());
  return number;
}

std::uint64_t GtopkBackend::start_in_turn(std::unique_lock<std::mutex>& lock, GtopkWork& work,
                                          std::chrono::milliseconds timeout, Collective collective,
                                          const CallExtras& extras) {
  const std::shared_ptr<Membership> member = membership_;
  lock.unlock();
  CallOrder& order = state_->order();
  const CallOrder::EntryPointer entry =
      order.wait_for_turn(member->runtime->completer, after(timeout));
  lock.lock();
  std::uint64_t number = 0;
  try {
    check_same_member(member);
    number = start(work, timeout, std::move(collective), extras);
  } catch (...) {
    order.started(entry, 0);
    lock.unlock();
    order.advance();
    throw;
  }
  order.started(entry, number);
  return number;
}

void GtopkBackend::defer(const c10::intrusive_ptr<GtopkWork>& work,
                         std::chrono::milliseconds timeout, Collective collective,
                         const CallExtras& extras) {
  const c10::weak_intrusive_ptr<GtopkBackend> itself(
      c10::intrusive_ptr<GtopkBackend>::unsafe_reclaim_from_nonowning(this));
  const std::string late = c10::str(
      collective.name, " did not start within ", timeout.count(),
      " ms: it waits for a callback of an earlier collective's future, and that callback has not "
      "returned. A callback that waits for a later collective should wait for that collective's "
      "Work");
  const auto start_or_end = [itself, work, timeout, extras, runtime = membership_->runtime,
                             state = state_, unseen = unseen_, member = std::weak_ptr(membership_),
                             called = std::make_shared<Collective>(std::move(collective))](
                                const std::exception_ptr& error) -> std::uint64_t {
    std::exception_ptr failure = error;
    const auto backend = itself.lock();
    if (!failure && backend) {
      try {
        const std::lock_guard lock(backend->mutex_);
        backend->check_same_member(member.lock());
        return backend->start(*work, timeout, std::move(*called), extras);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    if (!failure) {
      failure = std::make_exception_ptr(
          Error(ErrorKind::kAborted, "the process group has been destroyed"));
    }
    work->call(runtime->completer, timeout, 0, state, unseen).done(failure);
    return 0;
  };
  // For waitForPendingWorks() the window counts as in flight as long as its operations are.
  static_cast<void>(state_->begin(GroupState::Kind::kMessage));
  CallOrder::Deferred deferred;
  deferred.start = [start_or_end, state = state_](const std::exception_ptr& error) {
    const std::uint64_t number = start_or_end(error);
    state->end(std::nullopt);
    return number;
  };
  deferred.timeout = std::min(timeout, kLongestTimeout);
  deferred.late = [itself, late] {
    if (const auto backend = itself.lock()) {
      backend->abort_because(ErrorKind::kTimeout, late);
    }
  };
  work->deferred(state_->order().defer(membership_->runtime->completer, std::move(deferred)));
}

void GtopkBackend::keep_order(Call& call, std::shared_ptr<Gate>& last) {
  if (call.input) {
    last = call.input;
  } else if (last && !last->verdict()) {
    call.input = last;
  }
}

}  // namespace gtopk::torch_backend
