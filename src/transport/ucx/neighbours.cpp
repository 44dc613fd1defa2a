#include "src/transport/ucx/neighbours.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "src/transport/base/log.hpp"
#include "src/transport/ucx/host_identity.hpp"

namespace gtopk::transport {
namespace {

// glibc has a function for this since 2.36. The descriptor closes on exec.
int open_process(pid_t process) { return static_cast<int>(syscall(SYS_pidfd_open, process, 0)); }

bool is_readable(int process) {
  pollfd entry = {.fd = process, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) > 0;
}

/// Whether the process for which the descriptor was opened by pid has ended. Another process may
/// have reused the pid before the descriptor was opened.
bool is_over(int descriptor, const PeerInfo& process, std::uint64_t started) {
  return is_readable(descriptor) || (started != 0 && started != process.place.started);
}

}  // namespace

Neighbours::~Neighbours() {
  for (const auto& [peer, descriptor] : watched_) {
    close(descriptor);
  }
  if (all_ >= 0) {
    close(all_);
  }
}

bool Neighbours::visible(const PeerInfo& process) const {
  const HostIdentity& here = self_.place;
  const HostIdentity& there = process.place;
  return !here.boot.empty() && here.boot == there.boot && here.process_namespace != 0 &&
         here.process_namespace == there.process_namespace && there.started != 0 &&
         process.process != self_.process;
}

bool Neighbours::watch(PeerId peer, const PeerInfo& process) {
  if (!visible(process) || watched_.contains(peer)) {
    return true;
  }
  const auto id = static_cast<pid_t>(process.process);
  const int descriptor = open_process(id);
  if (descriptor < 0) {
    if (errno == ESRCH) {
      return false;
    }
    log().debug("pid {} cannot be watched: {}", id, std::generic_category().message(errno));
    return true;
  }
  const std::uint64_t started = start_of(id);
  const bool gone = is_over(descriptor, process, started);
  if (all_ < 0) {
    all_ = epoll_create1(EPOLL_CLOEXEC);
  }
  epoll_event event = {.events = EPOLLIN, .data = {.u32 = peer}};
  if (gone || started == 0 || epoll_ctl(all_, EPOLL_CTL_ADD, descriptor, &event) != 0) {
    close(descriptor);
    return !gone;
  }
  watched_.emplace(peer, descriptor);
  return true;
}

bool Neighbours::has_ended(const PeerInfo& process) const {
  if (!visible(process)) {
    return false;
  }
  const auto id = static_cast<pid_t>(process.process);
  const int descriptor = open_process(id);
  if (descriptor < 0) {
    return errno == ESRCH;
  }
  const bool gone = is_over(descriptor, process, start_of(id)) || is_exiting(id);
  close(descriptor);
  return gone;
}

void Neighbours::forget(PeerId peer) {
  if (const auto entry = watched_.find(peer); entry != watched_.end()) {
    // Delete it explicitly, because a forked child may hold a copy, and then closing this one does
    // not end the watch.
    epoll_ctl(all_, EPOLL_CTL_DEL, entry->second, nullptr);
    close(entry->second);
    watched_.erase(entry);
  }
}

std::vector<PeerId> Neighbours::take_ended() {
  std::vector<PeerId> ended;
  if (watched_.empty()) {
    return ended;
  }
  std::array<epoll_event, 16> events{};
  const int count = epoll_wait(all_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    ended.push_back(events.at(static_cast<std::size_t>(i)).data.u32);
    forget(ended.back());
  }
  return ended;
}

}  // namespace gtopk::transport
