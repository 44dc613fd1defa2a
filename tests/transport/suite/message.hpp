// Test support of the transports: a message that remembers how it ended.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/transport/base/transport.hpp"

namespace gtopk::test {

using transport::PeerId;
using transport::Request;
using transport::Status;
using transport::Tag;
using transport::Transport;

/// A message to send or a buffer to receive into, with its request. It must not move while pending.
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
    transport.send(peer, tag, std::as_bytes(std::span(bytes)), request);
  }
  void recv(Transport& transport, PeerId peer, Tag tag) {
    transport.recv(peer, tag, std::as_writable_bytes(std::span(bytes)), request);
  }
  [[nodiscard]] bool done() const { return !request.pending(); }
  [[nodiscard]] bool pending() const { return request.pending(); }
  [[nodiscard]] Status status() const {
    EXPECT_LE(completions, 1);
    return request.status();
  }
  /// The received bytes.
  [[nodiscard]] std::string text() const { return bytes.substr(0, request.length()); }
};

/// Content in which every shift and every lost byte shows.
inline std::string pattern(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  unsigned state = seed * 2654435761U + 1;
  for (char& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24U);
  }
  return bytes;
}

/// Zero, and every power of two up to 4 MiB with its neighbours: any size at which a transport
/// switches protocols lies between two of them.
inline std::vector<std::size_t> sizes_around_limits() {
  std::vector<std::size_t> sizes = {0};
  for (std::size_t power = 1; power <= std::size_t{4} << 20U; power *= 2) {
    sizes.insert(sizes.end(), {power - (power > 2 ? 1 : 0), power, power + 1});
  }
  return sizes;
}

}  // namespace gtopk::test
