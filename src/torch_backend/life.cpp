// Torch backend: the life of a group's backend: how it meets, leaves, and is aborted, split, or
// reconfigured with other ranks, and the hooks that observe this.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <variant>

#include "src/torch_backend/backend.hpp"
#include "src/torch_backend/errors.hpp"
#include "src/torch_backend/forks.hpp"
#include "src/torch_backend/gil.hpp"
#include "src/torch_backend/store.hpp"

namespace gtopk::torch_backend {
namespace {

using BackendPointer = c10::intrusive_ptr<GtopkBackend>;

std::atomic<std::int64_t> backends_made{0};

using Backends = std::map<std::int64_t, c10::weak_intrusive_ptr<GtopkBackend>>;

/// The living backends, by number. They are guarded by process_mutex() and never destroyed, because
/// backends may be released while the process exits.
Backends& backends() {
  static auto* const living = std::make_unique<Backends>().release();
  return *living;
}

/// Draws a handle that differs from the handle of every other process in the job.
std::string drawn_handle() {
  std::random_device random;
  std::string handle = "gtopk-";
  for (int word = 0; word < 4; ++word) {
    handle += c10::str(random(), word < 3 ? "-" : "");
  }
  return handle;
}

}  // namespace

BackendPointer GtopkBackend::make(const BackendOptions& options) {
  const WithoutGil without_gil;
  auto backend = c10::make_intrusive<GtopkBackend>(options);
  const std::lock_guard lock(process_mutex());
  backends().emplace(backend->number(), backend);
  return backend;
}

BackendPointer GtopkBackend::numbered(std::int64_t number) {
  BackendPointer backend;
  {
    const std::lock_guard lock(process_mutex());
    const auto at = backends().find(number);
    if (at != backends().end()) {
      backend = at->second.lock();
    }
  }
  if (!backend) {
    rethrow_for_python(Error(ErrorKind::kAborted, "the process group has been destroyed"));
  }
  return backend;
}

std::vector<BackendPointer> GtopkBackend::living() {
  std::vector<BackendPointer> all;
  const std::lock_guard lock(process_mutex());
  for (const auto& [number, weak] : backends()) {
    if (auto backend = weak.lock()) {
      all.push_back(std::move(backend));
    }
  }
  return all;
}

GtopkBackend::GtopkBackend(const BackendOptions& options)
    : Backend(options.rank, options.size),
      number_(backends_made++),
      options_(c10::make_intrusive<Options>("gtopk", options.timeout)),
      backend_options_(options),
      handle_(options.reconfigurable ? drawn_handle() : std::string()),
      forks_(forks()) {
  options_->group_name = options.group_name;
  if (!options.reconfigurable) {
    membership_ =
        join(options.store, options.group_name, options.rank, options.size, options.timeout);
  }
  init();
}

GtopkBackend::~GtopkBackend() { shutdown(); }

std::shared_ptr<GtopkBackend::Membership> GtopkBackend::join(
    const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank, int size,
    std::chrono::milliseconds timeout) const {
  // The last owner to release it waits for other threads' callbacks. In a forked child it is
  // leaked, because its threads do not exist and its network belongs to the parent.
  const auto leave = [forks_before = forks_](Membership* membership) {
    std::unique_ptr<Membership> last(membership);
    if (forks_before != forks()) {
      static_cast<void>(last.release());
      return;
    }
    const WithoutGil without_gil;
    last.reset();
  };
  try {
    const Meeting meeting{.directory = directory_of(store),
                          .name = name,
                          .rank = static_cast<std::uint32_t>(rank),
                          .size = static_cast<std::uint32_t>(size),
                          .timeout = std::min(timeout, kLongestTimeout)};
    return {std::make_unique<Membership>(Runtime::get(), meeting).release(), leave};
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
}

void GtopkBackend::shutdown() {
  if (forks_ != forks()) {
    return;  // the child's copy of the mutex may stay locked forever
  }
  std::shared_ptr<Membership> last;
  {
    const std::lock_guard lock(mutex_);
    last.swap(membership_);
  }
  if (last) {
    state_->order().close(std::make_exception_ptr(
        Error(ErrorKind::kAborted,
              "the process group '" + options_->group_name + "' has been destroyed")));
  }
}

void GtopkBackend::set_last_words(const std::string& text) {
  if (forks_ != forks()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (membership_) {
    membership_->runtime->process->set_last_words(text);
  }
}

void GtopkBackend::release_resources() {
  shutdown();
  const std::lock_guard lock(process_mutex());
  backends().erase(number_);
}

void GtopkBackend::abort() {
  const WithoutGil without_gil;
  check_not_forked();
  abort_because(ErrorKind::kAborted, "abort() was called");
}

void GtopkBackend::abort_because(ErrorKind kind, const std::string& reason) {
  std::shared_ptr<Membership> held;
  {
    const std::lock_guard lock(mutex_);
    held = membership_;
  }
  if (!held) {
    return;
  }
  const std::optional<ErrorKind> failure = held->communicator.failure();
  if (state_->note(error_type(failure.value_or(kind)))) {
    state_->run_abort_hooks();
  }
  held->communicator.abort(reason);
  state_->order().close(std::make_exception_ptr(Error(kind, reason)));
}

gpu::Watch::Failed GtopkBackend::ending_group() const {
  return [member = std::weak_ptr(membership_)](const std::string& why) {
    if (const auto held = member.lock()) {
      held->communicator.abort(why);
    }
  };
}

void GtopkBackend::check_not_forked() const {
  try {
    check_not_forked_since(forks_);
  } catch (const Error& error) {
    rethrow_for_python(error);
  }
}

void GtopkBackend::check_member() const {
  if (membership_) {
    return;
  }
  const std::string group = "the process group '" + options_->group_name + "' has ";
  if (!meeting_failed_.empty()) {
    rethrow_for_python(Error(ErrorKind::kAborted,
                             group + "no ranks, as its last reconfigure failed; call reconfigure " +
                                 "with a new uuid. It failed with: " + meeting_failed_));
  }
  const bool waits = backend_options_.reconfigurable && meetings_.empty();
  rethrow_for_python(Error(ErrorKind::kAborted,
                           group + (waits ? "no ranks yet: call reconfigure" : "been destroyed")));
}

void GtopkBackend::check_same_member(const std::shared_ptr<Membership>& member) const {
  check_member();
  if (membership_ != member) {
    rethrow_for_python(
        Error(ErrorKind::kAborted, "the process group '" + options_->group_name +
                                       "' was reconfigured before this collective could start"));
  }
}

std::shared_ptr<GtopkBackend::Membership> GtopkBackend::membership() {
  check_not_forked();
  const std::lock_guard lock(mutex_);
  check_member();
  return membership_;
}

c10::intrusive_ptr<GtopkBackend::Options> GtopkBackend::getBackendOptions() {
  const std::lock_guard lock(mutex_);
  return c10::make_intrusive<Options>(*options_);
}

void GtopkBackend::setTimeout(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  options_->timeout = timeout;
  if (membership_) {
    membership_->communicator.set_timeout(std::min(timeout, kLongestTimeout));
  }
}

c10d::ErrorType GtopkBackend::getError() {
  const WithoutGil without_gil;
  check_not_forked();
  std::shared_ptr<Membership> held;
  {
    const std::lock_guard lock(mutex_);
    if (!membership_ && !meeting_failed_.empty()) {
      return c10d::ErrorType::COMM_ERROR;
    }
    held = membership_;
  }
  const c10d::ErrorType noted = state_->error();
  if (noted != c10d::ErrorType::SUCCESS || !held) {
    return noted;
  }
  // Record the error for the abort hooks that then run.
  const std::optional<ErrorKind> failure = held->communicator.failure();
  return failure ? error_type(*failure) : noted;
}

c10::intrusive_ptr<c10d::Backend> GtopkBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<Options>& opts) {
  check_not_forked();
  const std::set<int> distinct(ranks.begin(), ranks.end());
  TORCH_CHECK_VALUE(distinct.size() == ranks.size() && !ranks.empty() && *distinct.begin() >= 0 &&
                        *distinct.rbegin() < size_,
                    "gtopk: split needs distinct ranks from 0 to ", size_ - 1, ", given ", ranks);
  const auto mine = std::ranges::find(ranks, rank_);
  if (mine == ranks.end()) {
    return nullptr;
  }
  const auto options = opts ? opts : getBackendOptions();
  const bool named =
      !options->group_name.empty() && options->group_name != backend_options_.group_name;
  return make(
      {.store = store,
       .rank = static_cast<int>(mine - ranks.begin()),
       .size = static_cast<int>(ranks.size()),
       .timeout = options->timeout,
       .group_name = named ? options->group_name : "split of " + backend_options_.group_name});
}

c10::intrusive_ptr<c10d::Backend> GtopkBackend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const c10::intrusive_ptr<Options>& opts,
                                                      const int& rank, const int& size) {
  check_not_forked();
  const auto options = opts ? opts : getBackendOptions();
  return make({.store = store,
               .rank = rank,
               .size = size,
               .timeout = options->timeout,
               .group_name = "merged with " + backend_options_.group_name});
}

#if TORCH_VERSION_MINOR >= 14
c10d::ReconfigureHandle GtopkBackend::get_reconfigure_handle() const {
  TORCH_CHECK_VALUE(backend_options_.reconfigurable,
                    "gtopk: only a group made with enable_reconfigure=True can be reconfigured");
  return handle_;
}

c10::intrusive_ptr<c10d::Work> GtopkBackend::reconfigure(const c10d::ReconfigureOptions& opts) {
  const WithoutGil without_gil;
  check_not_forked();
  static_cast<void>(get_reconfigure_handle());
  // All ranks must order a set in the same way.
  std::vector<std::string> handles;
  if (const auto* const any = std::get_if<0>(&opts.handles)) {
    handles.assign(any->begin(), any->end());
    std::ranges::sort(handles);
  } else {
    handles = std::get<1>(opts.handles);
  }
  const auto mine = std::ranges::find(handles, handle_);
  const std::set<std::string> distinct(handles.begin(), handles.end());
  TORCH_CHECK_VALUE(mine != handles.end() && distinct.size() == handles.size(),
                    "gtopk: reconfigure needs distinct handles, including this rank's; given ",
                    handles.size(), mine == handles.end() ? ", none of them this rank's" : "");
  std::shared_ptr<Membership> last;
  std::chrono::milliseconds timeout{};
  {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(meetings_.insert(opts.uuid).second, "gtopk: reconfigure needs a new uuid; ",
                opts.uuid, " was already used");  // PyTorch's suite requires these words
    last.swap(membership_);
    timeout = opts.timeout.value_or(options_->timeout);
  }
  // This keeps the engine alive, which would otherwise end with its last group and wait for the
  // goodbyes of peers that stay.
  const std::shared_ptr<Runtime> runtime = last ? last->runtime : nullptr;
  if (last) {
    last->communicator.abort("the group is being reconfigured");
    state_->order().close(
        std::make_exception_ptr(Error(ErrorKind::kAborted, "the group is being reconfigured")));
  }
  last.reset();
  const auto rank = static_cast<int>(mine - handles.begin());
  const auto size = static_cast<int>(handles.size());
  // The prefix is unique, because other ranks may be ahead and already meet under another uuid.
  const auto store = c10::make_intrusive<c10d::PrefixStore>(c10::str("reconfigure/", opts.uuid),
                                                            backend_options_.store);
  std::shared_ptr<Membership> joined;
  try {
    joined =
        join(store, c10::str(backend_options_.group_name, "/", opts.uuid), rank, size, timeout);
  } catch (const c10::Error& error) {
    const std::lock_guard lock(mutex_);
    meeting_failed_ = error.what_without_backtrace();
    throw;
  }
  const std::lock_guard lock(mutex_);
  meeting_failed_.clear();
  joined->communicator.set_timeout(std::min(options_->timeout, kLongestTimeout));
  membership_ = std::move(joined);
  rank_ = rank;
  size_ = size;
  sequence_ = 0;
  state_->forget_error();
  state_->order().reopen();
  unseen_ = std::make_shared<UnseenError>();  // Works of the former group keep the old object
  last_sent_.reset();
  last_received_.reset();
  return c10::make_intrusive<CoalescedWork>(rank_, Works{});  // it has already ended
}
#endif

#if TORCH_VERSION_MINOR >= 15
void GtopkBackend::registerCompletionHook(int64_t id, c10d::CompletionHook hook) {
  state_->add_completion_hook(id, [hook = std::move(hook)](std::uint64_t key, float duration) {
    hook({.completionKey = key, .duration_ms = duration});
  });
}
#endif

void GtopkBackend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK_VALUE(!hasHooks(), "gtopk: a group can have only one completion hook");
  onCompletionHook_ = std::move(hook);
  state_->set_end_hook(onCompletionHook_);
}

void GtopkBackend::waitForPendingWorks() {
  const WithoutGil without_gil;
  check_not_forked();
  state_->wait_for_all();
}

}  // namespace gtopk::torch_backend
