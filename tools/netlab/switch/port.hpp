// One port: a raw socket on an interface, which reads from a ring that it shares with the kernel.
// It uses AF_PACKET, and must not know what the switch does with a frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "delay_line.hpp"

namespace netlab {

/// Makes the kernel send complete frames of at most the MTU from this interface, with checksums,
/// because nothing behind the switch's raw sockets would cut or checksum them. Throws
/// std::system_error.
void disable_offloads(const std::string& interface);

class Port {
 public:
  /// Opens a port. Throws std::system_error if there is no such interface or it cannot be read.
  explicit Port(const std::string& interface);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  Port(Port&&) = delete;
  Port& operator=(Port&&) = delete;

  /// A descriptor for poll, which is readable while a frame waits.
  [[nodiscard]] int descriptor() const { return socket_; }

  struct Received {
    std::span<const std::byte> bytes;
    Time age;       // time since the kernel saw the frame
    bool complete;  // false if it was larger than the MTU and cut
  };

  /// Returns the next frame, or nothing. It is valid until release(), which must follow.
  [[nodiscard]] std::optional<Received> receive();
  void release();

  /// Sends frames in order. Returns how many of them the interface's queue took; it dropped the
  /// others.
  [[nodiscard]] std::size_t send(std::span<const Frame> frames) const;

  /// Returns the number of frames that the kernel dropped since the last call because the ring was
  /// full.
  [[nodiscard]] std::uint64_t missed() const;

 private:
  [[nodiscard]] std::byte* slot() const;

  int socket_ = -1;
  std::byte* ring_ = nullptr;
  std::size_t slot_bytes_ = 0;
  std::size_t slots_ = 0;
  std::size_t next_ = 0;
};

}  // namespace netlab
