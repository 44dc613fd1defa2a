// Transport over UCX: what a process tells other processes about itself, little-endian:
//   "GTUX" 4 | version 1 | identity 8 | pid 8 | host length 2 | host | boot length 2 | boot |
//   process namespace 8 | network namespace 8 | IPC namespace 8 | started 8 | key 8 |
//   number of TCP addresses 2 | for each: host length 2 | host | port 2 |
//   worker address length 4 | worker address
// A card has no TCP and worker addresses, and an address has no key (0): cards are shown only to
// the members of a group that meets, while addresses lie in a directory for as long as the process
// lives.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/transport/base/transport.hpp"
#include "src/transport/ucx/tcp_address.hpp"

namespace gtopk::transport {

struct UcxAddress {
  PeerInfo process;
  Tag key = 0;                    ///< the key of tags of messages to it; 0 in an address
  std::vector<TcpAddress> tcp{};  ///< where the worker accepts connections; empty in a card
  std::string worker;             ///< UCX's own blob; empty in a card
};

[[nodiscard]] std::string encode(const UcxAddress& address);

/// Decodes a blob. Throws Error{kBootstrap}, which says what is wrong with it.
[[nodiscard]] UcxAddress decode_ucx_address(std::string_view blob);

}  // namespace gtopk::transport
