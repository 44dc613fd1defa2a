// Torch backend: the connection of a TCPStore's client, which torch does not expose, so it is found
// among this process's descriptors. Whoever uses a client after its server has gone gets an error
// from torch, and a stack trace on stderr: so look before.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace gtopk::torch_backend {

class StoreConnection {
 public:
  /// Before the client connects to that port.
  explicit StoreConnection(std::uint16_t port);
  /// After it has connected: what is new since is its connection.
  void made();
  /// Whether the server has closed it. False if it was not found.
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
