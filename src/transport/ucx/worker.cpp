#include "src/transport/ucx/worker.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "gtopk/error.hpp"
#include "src/transport/base/shortage.hpp"
#include "src/transport/ucx/posix_space.hpp"
#include "src/transport/ucx/status.hpp"

namespace gtopk::transport {
namespace {

// No sleep is longer than this, even if the descriptor shows no event, because UCX has missed
// wake-ups.
constexpr Duration kLongestSleep = std::chrono::milliseconds(50);

// The worker waits for space in a peer's queue first as briefly as possible, and then sleeps for
// less time than the peer takes to empty it.
constexpr Duration kYield = std::chrono::microseconds(20);
constexpr Duration kNapForSpace = std::chrono::microseconds(50);

timespec to_timespec(Duration duration) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(duration);
  return {.tv_sec = seconds.count(), .tv_nsec = (duration - seconds).count()};
}

}  // namespace

UcxWorker::UcxWorker(const UcxContext& context, const UcxConfig& config) {
  const std::string ports = config.said_of_ports();
  const std::vector<ino_t> listened_before = listening_sockets();
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  const ucs_status_t status = ucp_worker_create(context.get(), &params, &worker);
  if (status == UCS_ERR_BUSY && !ports.empty()) {
    throw Error(
        ErrorKind::kTransport,
        fmt::format("no TCP port is free for UCX on this host: each process takes one port of {} "
                    "for each interface, and other processes hold them all; widen the range",
                    ports));
  }
  const std::string shortage = status == UCS_OK ? "" : posix_shortage(config.value("TLS"));
  throw_unless_ok(status, shortage.empty() ? "ucp_worker_create"
                                           : fmt::format("ucp_worker_create: {}", shortage));
  worker_.reset(worker);
  throw_unless_ok(ucp_worker_get_efd(worker, &event_descriptor_), "ucp_worker_get_efd");
  // This descriptor is used instead of ucp_worker_signal because it outlives the worker, so that a
  // late wake() is harmless.
  wake_descriptor_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_descriptor_ < 0) {
    const std::string reason = std::generic_category().message(errno);
    throw Error(ErrorKind::kTransport,
                fmt::format("eventfd: {}: {}", reason, descriptor_shortage(1)));
  }
  sockets_.emplace(event_descriptor_, listened_before, address(), config.keepalive());
}

UcxWorker::~UcxWorker() {
  close();
  ::close(wake_descriptor_);
}

std::string UcxWorker::address() const {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS;
  throw_unless_ok(ucp_worker_query(worker_.get(), &attributes), "ucp_worker_query");
  std::string bytes(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
  ucp_worker_release_address(worker_.get(), attributes.address);
  return bytes;
}

void UcxWorker::close() {
  sockets_.reset();
  worker_.reset();
  event_descriptor_ = -1;  // it belonged to the worker
}

bool UcxWorker::progress() {
  const bool moved = worker_ != nullptr && ucp_worker_progress(worker_.get()) != 0;
  stuck_ = stuck_ && !moved;
  return moved;
}

bool UcxWorker::sleep(Duration at_most, int also) {
  if (sockets_) {
    sockets_->mark(std::chrono::steady_clock::now());
  }
  if (!may_sleep()) {
    return false;
  }
  // UCX's protocol: nothing left to do, arm, and only then sleep. BUSY means that something has
  // arrived in between, or that a message of this process waits for space in a peer's queue, which
  // no event announces, or that the next message in this worker's queue is still being written.
  if (worker_ != nullptr && ucp_worker_arm(worker_.get()) != UCS_OK) {
    asleep_.store(false);
    wait_for_space();
    return false;
  }
  in_doubt_ = false;  // a half-written message would have kept UCX from being armed
  // poll() ignores a negative descriptor.
  std::array<pollfd, 3> entries = {{{.fd = event_descriptor_, .events = POLLIN, .revents = 0},
                                    {.fd = wake_descriptor_, .events = POLLIN, .revents = 0},
                                    {.fd = also, .events = POLLIN, .revents = 0}}};
  const timespec time = to_timespec(std::min(at_most, kLongestSleep));
  ppoll(entries.data(), entries.size(), &time, nullptr);
  asleep_.store(false);
  if (entries[1].revents != 0) {
    forget_wake();
  }
  return entries[2].revents != 0;
}

void UcxWorker::expect_connection() {
  if (sockets_) {
    sockets_->expect_another();
  }
}

void UcxWorker::rest(Duration at_most) {
  if (!may_sleep()) {
    return;
  }
  pollfd entry = {.fd = wake_descriptor_, .events = POLLIN, .revents = 0};
  const timespec time = to_timespec(at_most);
  const int ready = ppoll(&entry, 1, &time, nullptr);
  asleep_.store(false);
  if (ready > 0) {
    forget_wake();
  }
}

void UcxWorker::wait_for_space() {
  const TimePoint now = std::chrono::steady_clock::now();
  if (!std::exchange(stuck_, true)) {
    stuck_since_ = now;
  }
  // If ranks share a core, the peer needs it to make space. Linux 6.18 may return from
  // sched_yield() to the same thread for a whole slice (milliseconds), even if others could run; a
  // sleep never does so.
  if (now - stuck_since_ < kYield) {
    sched_yield();
  } else {
    rest(kNapForSpace);
  }
}

bool UcxWorker::may_sleep() {
  // wake() does these in the opposite order, so either it sees the sleep, or this function sees the
  // wake.
  asleep_.store(true);
  if (woken_.load()) {
    asleep_.store(false);
    forget_wake();
    return false;
  }
  return true;
}

void UcxWorker::forget_wake() {
  eventfd_t ignored = 0;
  eventfd_read(wake_descriptor_, &ignored);
  // This follows the read because a wake() in between has not written, and the next wait sees what
  // it announces.
  woken_.exchange(false, std::memory_order_acq_rel);
}

void UcxWorker::wake() {
  if (!woken_.exchange(true) && asleep_.load()) {
    eventfd_write(wake_descriptor_, 1);
  }
}

}  // namespace gtopk::transport
