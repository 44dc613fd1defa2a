// gtopk-pingpong: what carries messages between the two ranks: the transport alone, or a group's
// calls. What is measured is the same over both.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "gtopk/key_value_store.hpp"
#include "gtopk/launch.hpp"

namespace gtopk::programs::pingpong {

class Wire {
 public:
  Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  Wire(Wire&&) = delete;
  Wire& operator=(Wire&&) = delete;
  virtual ~Wire() = default;

  /// Start one message; those of one slot are matched in the order of the calls. Memory stays valid
  /// until finish().
  virtual void send(std::uint32_t slot, std::span<const std::byte> data) = 0;
  virtual void recv(std::uint32_t slot, std::span<std::byte> data) = 0;
  /// Waits for everything that was started. Throws when a message failed or took too long.
  virtual void finish() = 0;
  /// "UCX 1.22.0, transports ..."
  [[nodiscard]] virtual std::string describe() const = 0;
  /// Over what UCX reaches the other rank, once a message has been sent: "tcp/eth0". Empty where
  /// that is not told.
  [[nodiscard]] virtual std::string lanes() const { return {}; }
};

/// How the two find each other.
struct Ends {
  LaunchEnvironment environment;
  std::shared_ptr<KeyValueStore> store;
  std::chrono::nanoseconds timeout{};
};

/// The transport, moved by the calling thread as the engine's loop does: progress, then yield.
/// chunk: bytes of a part; 0: each message whole.
[[nodiscard]] std::unique_ptr<Wire> message_wire(const Ends& ends, std::uint64_t chunk);
/// send() and recv() of a group.
[[nodiscard]] std::unique_ptr<Wire> call_wire(const Ends& ends);

}  // namespace gtopk::programs::pingpong
