// Test support of this room: UCX transports in one process and one thread, which all know each
// other, and messages that remember what became of them.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "transport/ucx/ucx_transport.hpp"

namespace gtopk::test {

using transport::PeerId;
using transport::Request;
using transport::Status;
using transport::Tag;
using transport::Transport;

inline constexpr std::chrono::seconds kWatchdog{30};

/// Calls `progress` until `done()`; false when the watchdog was faster.
template <typename Progress, typename Done>
bool progress_until(const Progress& progress, const Done& done,
                    std::chrono::nanoseconds limit = kWatchdog) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    if (!progress()) {
      sched_yield();
    }
  }
  return true;
}

/// A message and its request; counts how often it was completed.
struct Message {
  std::string bytes;
  Request request;
  int completions = 0;

  explicit Message(std::string content) : bytes(std::move(content)) { arm(); }
  explicit Message(std::size_t size) : Message(std::string(size, '\0')) {}

  void arm() {
    request.prepare([](Request& r) { ++static_cast<Message*>(r.context())->completions; }, this);
  }
  void send(Transport& transport, PeerId peer, Tag tag) {
    transport.send(peer, tag, bytes.data(), bytes.size(), request);
  }
  void recv(Transport& transport, PeerId peer, Tag tag) {
    transport.recv(peer, tag, bytes.data(), bytes.size(), request);
  }
  [[nodiscard]] bool done() const { return !request.pending(); }
};

/// Content that shows every shift and every lost byte.
inline std::string pattern(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  unsigned state = seed * 2654435761U + 1;
  for (char& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24U);
  }
  return bytes;
}

/// `size` transports; ids[i][j] is what i calls j.
class Mesh {
 public:
  explicit Mesh(std::size_t size, const transport::UcxOptions& options = {}) {
    std::vector<std::string> addresses;
    for (std::size_t i = 0; i < size; ++i) {
      transports.push_back(transport::make_ucx_transport(options));
      addresses.push_back(transports.back()->address());
    }
    ids.resize(size);
    for (std::size_t i = 0; i < size; ++i) {
      for (const std::string& address : addresses) {
        ids[i].push_back(transports[i]->add_peer(address));
      }
    }
  }

  bool progress() {
    bool moved = false;
    for (const auto& transport : transports) {
      moved = transport->progress() || moved;
    }
    return moved;
  }
  template <typename Done>
  bool until(const Done& done, std::chrono::nanoseconds limit = kWatchdog) {
    return progress_until([this] { return progress(); }, done, limit);
  }
  /// What transport `from` has sent to `to` so far is there, received or not: a message that was
  /// sent behind it is.
  [[nodiscard]] bool arrived(std::size_t from, std::size_t to) {
    constexpr Tag kBehind = ~Tag{0};
    Message out("x");
    Message in(std::size_t{1});
    in.recv(*transports[to], ids[to][from], kBehind);
    out.send(*transports[from], ids[from][to], kBehind);
    return until([&] { return in.done() && out.done(); }) && in.bytes == out.bytes;
  }
  Transport& operator[](std::size_t i) { return *transports[i]; }

  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::vector<PeerId>> ids;
};

}  // namespace gtopk::test
