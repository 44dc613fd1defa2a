#include "tests/communicator/member.hpp"

#include <exception>
#include <stdexcept>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace gtopk::test {
namespace {

using std::chrono::steady_clock;

/// Examined where it was thrown: the reference count of an exception shared by two threads lives in
/// a library that ThreadSanitizer does not see into.
Ending ending_of(const std::exception_ptr& error) {
  if (error == nullptr) {
    return {};
  }
  try {
    std::rethrow_exception(error);
  } catch (const Error& seen) {
    return {seen.kind(), seen.what()};
  }
}

}  // namespace

std::string name_of_transport(std::string_view tls) { return tls == kTcp ? "Tcp" : "SharedMemory"; }

Pending::~Pending() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->owed || std::uncaught_exceptions() > 0 || testing::Test::HasFailure()) {
    return;
  }
  ADD_FAILURE() << "an operation was called and nobody looked how it ended";
}

Call Pending::call(std::optional<std::chrono::nanoseconds> timeout,
                   std::function<void()> then) const {
  {
    const std::lock_guard lock(state_->mutex);
    state_->owed = true;
  }
  Call call;
  call.timeout = timeout;
  call.done = [state = state_, then = std::move(then)](const std::exception_ptr& error) {
    Ending ending = ending_of(error);
    if (then) {
      then();
    }
    const std::lock_guard lock(state->mutex);
    if (state->ending) {
      ending = {ErrorKind::kTransport, "done was called twice"};
    }
    state->ending = std::move(ending);
    state->changed.notify_all();
  };
  return call;
}

Ending Pending::wait(std::chrono::nanoseconds at_most) const {
  std::unique_lock lock(state_->mutex);
  state_->owed = false;
  if (!state_->changed.wait_for(lock, at_most, [&] { return state_->ending.has_value(); })) {
    throw std::runtime_error(fmt::format("an operation has not ended after {} s",
                                         std::chrono::duration<double>(at_most).count()));
  }
  return *state_->ending;
}

void wait_for_all(KeyValueStore& store, const std::string& place, int ranks) {
  if (store.add(place, 1) == ranks) {
    store.set(place, "all");
  }
  static_cast<void>(store.get(place, kWatchdog));
}

Member::Member(const ForkedRank& self, const std::string& host)
    : Member(self.store(), "default", static_cast<std::uint32_t>(self.rank()),
             static_cast<std::uint32_t>(self.size()), host) {}

Member::Member(const std::shared_ptr<KeyValueStore>& job, const std::string& group,
               std::uint32_t rank, std::uint32_t size, const std::string& host)
    : process_(Process::start()),
      group_(std::make_unique<Communicator>(process_, Meeting{.directory = directory_over(job),
                                                              .name = group,
                                                              .rank = rank,
                                                              .size = size,
                                                              .timeout = kWatchdog,
                                                              .host = host})) {}

std::chrono::nanoseconds Member::leave() {
  const auto begin = steady_clock::now();
  group_.reset();
  process_.reset();
  return steady_clock::now() - begin;
}

}  // namespace gtopk::test
