// gtopk-pingpong: what carries messages between the two ranks: the transport alone, or a group's
// calls. Both are measured in the same way.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "gtopk/key_value_store.hpp"
#include "gtopk/launch.hpp"
#include "gtopk/memory.hpp"
#include "tools/programs/gpu.hpp"

namespace gtopk::programs::pingpong {

class Wire {
 public:
  Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  Wire(Wire&&) = delete;
  Wire& operator=(Wire&&) = delete;
  virtual ~Wire() = default;

  /// Starts one message. Messages of one slot are matched in call order. Memory must stay valid
  /// until finish().
  virtual void send(std::uint32_t slot, ConstBytes data) = 0;
  virtual void recv(std::uint32_t slot, Bytes data) = 0;
  /// Whether a message of this size may lie in memory of that kind.
  [[nodiscard]] virtual bool takes(Memory::Kind kind, std::uint64_t bytes) const = 0;
  /// Waits for everything that was started. Throws if a message failed or took too long.
  virtual void finish() = 0;
  /// The transport: "UCX 1.22.0, transports ...".
  [[nodiscard]] virtual std::string describe() const = 0;
  /// How UCX reaches the other rank, once a message has been sent: "tcp/eth0". Empty if unknown.
  [[nodiscard]] virtual std::string lanes() const { return {}; }
};

/// The means by which the two ranks find each other.
struct Ends {
  LaunchEnvironment environment;
  std::shared_ptr<KeyValueStore> store;
  std::chrono::nanoseconds timeout{};
};

/// Returns the transport, progressed by the calling thread as in the engine's loop: progress, then
/// yield. `chunk` is the number of bytes of a part; 0 means whole messages.
[[nodiscard]] std::unique_ptr<Wire> message_wire(const Ends& ends, std::uint64_t chunk);
/// Returns send() and recv() of a group. `gpu` is the GPU whose memory messages may use, or null.
[[nodiscard]] std::unique_ptr<Wire> call_wire(const Ends& ends, const Gpu* gpu);

}  // namespace gtopk::programs::pingpong
