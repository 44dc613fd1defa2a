// Transport, base: TCP keepalives. They keep an idle connection open in NATs and firewalls on its
// path, and end a connection whose other end no longer answers.
#pragma once

#include <chrono>
#include <optional>

namespace gtopk::transport {

/// The settings that UCX requests by default.
struct Keepalive {
  std::chrono::seconds idle{10};
  std::chrono::seconds interval{2};
  std::optional<int> probes{};  ///< unanswered probes until it ends; else the kernel's (9)
};

/// Enables keepalives. Sockets that a listening socket accepts later inherit them. Has no effect on
/// sockets other than TCP's.
void keep_alive(int socket, const Keepalive& keepalive = {});

}  // namespace gtopk::transport
