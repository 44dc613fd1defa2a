// Torch backend: the connection of a TCPStore's client. torch does not expose it, so it is found
// among this process's descriptors. A client used after its server has gone throws an error from
// torch, and prints a stack trace to stderr, so check before.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace gtopk::torch_backend {

class StoreConnection {
 public:
  /// Must be constructed before the client connects to that port.
  explicit StoreConnection(std::uint16_t port);
  /// Must be called after the client has connected; the new descriptor is its connection. Makes it
  /// and other connections to that port send keepalives, because torch does not.
  void made();
  /// Whether the server has closed the connection; false if the connection was not found.
  [[nodiscard]] bool closed() const;

 private:
  struct Socket {
    int descriptor;
    ino_t inode;
    bool operator==(const Socket&) const = default;
  };

  [[nodiscard]] std::vector<Socket> connections() const;

  std::uint16_t port_;
  std::vector<Socket> sockets_;
};

}  // namespace gtopk::torch_backend
