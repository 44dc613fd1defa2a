// Transport, base: TCP's keepalives. They hold an idle connection open in NATs and firewalls on its
// way, and end one whose other end no longer answers.
#pragma once

#include <chrono>
#include <optional>

namespace gtopk::transport {

/// Those that UCX requests by default.
struct Keepalive {
  std::chrono::seconds idle{10};
  std::chrono::seconds interval{2};
  std::optional<int> probes{};  ///< without an answer, after which it ends; else the kernel's (9)
};

/// Sockets that a listening one accepts later inherit it. Has no effect on other sockets than
/// TCP's.
void keep_alive(int socket, const Keepalive& keepalive = {});

}  // namespace gtopk::transport
