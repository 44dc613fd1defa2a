#include "src/torch_backend/group_state.hpp"

#include <exception>
#include <utility>

namespace gtopk::torch_backend {

c10d::ErrorType GroupState::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

bool GroupState::note(c10d::ErrorType error) {
  const std::lock_guard lock(mutex_);
  if (error == c10d::ErrorType::SUCCESS || error_ != c10d::ErrorType::SUCCESS) {
    return false;
  }
  error_ = error;
  return true;
}

void GroupState::forget_error() {
  const std::lock_guard lock(mutex_);
  error_ = c10d::ErrorType::SUCCESS;
}

void GroupState::add_abort_hook(std::int64_t id, AbortHook hook) {
  auto held = std::make_shared<const AbortHook>(std::move(hook));
  const std::lock_guard lock(mutex_);
  abort_hooks_[id].swap(held);
}

void GroupState::remove_abort_hook(std::int64_t id) {
  std::shared_ptr<const AbortHook> last;  // destroying it may run Python
  const std::lock_guard lock(mutex_);
  const auto at = abort_hooks_.find(id);
  if (at == abort_hooks_.end()) {
    return;
  }
  last = std::move(at->second);
  abort_hooks_.erase(at);
}

bool GroupState::has_abort_hooks() const {
  const std::lock_guard lock(mutex_);
  return !abort_hooks_.empty();
}

void GroupState::run_abort_hooks() const {
  std::map<std::int64_t, std::shared_ptr<const AbortHook>> hooks;
  {
    const std::lock_guard lock(mutex_);
    hooks = abort_hooks_;
  }
  for (const auto& [id, hook] : hooks) {
    try {
      (*hook)();
    } catch (const std::exception& error) {
      LOG(ERROR) << "gtopk: abort hook " << id << " threw: " << error.what();
    }
  }
}

void GroupState::add_completion_hook(std::int64_t id, CompletionHook hook) {
  const std::lock_guard lock(mutex_);
  completion_hooks_[id] = std::move(hook);
}

void GroupState::remove_completion_hook(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  completion_hooks_.erase(id);
}

void GroupState::completed(std::uint64_t key, float duration) const {
  const std::lock_guard lock(mutex_);  // hooks are short and call no function of this backend
  for (const auto& [id, hook] : completion_hooks_) {
    try {
      hook(key, duration);
    } catch (const std::exception& error) {
      LOG(ERROR) << "gtopk: completion hook " << id << " threw: " << error.what();
    }
  }
}

void GroupState::set_end_hook(EndHook hook) {
  auto held = std::make_shared<const EndHook>(std::move(hook));
  const std::lock_guard lock(mutex_);
  end_hook_.swap(held);
}

bool GroupState::has_end_hook() const {
  const std::lock_guard lock(mutex_);
  return end_hook_ != nullptr;
}

void GroupState::tell_end_hook(const std::shared_ptr<GroupState>& group,
                               std::shared_ptr<c10d::WorkInfo> ended, Completer& completer) {
  {
    const std::lock_guard lock(group->mutex_);
    ++group->under_way_;
    group->untold_.push_back(std::move(ended));
    if (std::exchange(group->telling_, true)) {
      return;
    }
  }
  completer.run([group] { group->tell_untold(); });
}

void GroupState::tell_untold() {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<const EndHook> hook = end_hook_;
  while (!untold_.empty()) {
    std::shared_ptr<c10d::WorkInfo> ended = std::move(untold_.front());
    untold_.pop_front();
    lock.unlock();
    try {
      (*hook)(ended);
    } catch (const std::exception& error) {
      LOG(ERROR) << "gtopk: the completion hook threw: " << error.what();
    }
    end();
    lock.lock();
  }
  telling_ = false;
}

std::optional<std::uint64_t> GroupState::begin(Kind kind) {
  const std::lock_guard lock(mutex_);
  ++under_way_;
  if (kind == Kind::kMessage) {
    return std::nullopt;
  }
  if (kind == Kind::kBarrier) {
    intervals_.emplace_back();
    drop_ended_intervals();
  }
  ++intervals_.back().collectives;
  if (kind == Kind::kGated) {
    ++intervals_.back().gated;
  }
  return first_interval_ + intervals_.size() - 1;
}

void GroupState::leave_gate(std::uint64_t interval) {
  const std::lock_guard lock(mutex_);
  --intervals_[interval - first_interval_].gated;
}

void GroupState::end(std::optional<std::uint64_t> interval) {
  const std::lock_guard lock(mutex_);
  if (interval) {
    Interval& its = intervals_[*interval - first_interval_];
    if (--its.collectives == its.gated && intervals_.size() > 1) {
      changed_.notify_all();
    }
    drop_ended_intervals();
  }
  if (--under_way_ == 0) {
    changed_.notify_all();
  }
}

void GroupState::wait_for_all() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return under_way_ == 0; });
}

void GroupState::drop_ended_intervals() {
  while (intervals_.size() > 1 && intervals_.front().collectives == 0) {
    intervals_.pop_front();
    ++first_interval_;
  }
}

bool GroupState::have_ended_before(std::uint64_t interval) const {
  const std::lock_guard lock(mutex_);
  return ended_before(interval);
}

void GroupState::wait_for_those_before(std::uint64_t interval) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_before(interval); });
}

bool GroupState::ended_before(std::uint64_t interval) const {
  for (std::size_t i = 0; first_interval_ + i < interval; ++i) {
    if (intervals_[i].collectives != intervals_[i].gated) {
      return false;
    }
  }
  return true;
}

void GroupState::extend(std::chrono::milliseconds by) {
  const std::lock_guard lock(mutex_);
  extensions_[next_extension_++] = {by};
}

GroupState::Extended GroupState::extended() {
  const std::lock_guard lock(mutex_);
  Extended extended;
  for (auto& [number, extension] : extensions_) {
    extended.by += extension.by;
    if (!std::exchange(extension.has_a_work, true)) {
      extended.first_of.push_back(number);
    }
  }
  return extended;
}

void GroupState::end_extensions(const std::vector<std::uint64_t>& extensions) {
  if (extensions.empty()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t number : extensions) {
    extensions_.erase(number);
  }
}

}  // namespace gtopk::torch_backend
