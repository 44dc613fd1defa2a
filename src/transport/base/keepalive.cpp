#include "src/transport/base/keepalive.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace gtopk::transport {

void keep_alive(int socket, const Keepalive& keepalive) {
  const auto set = [socket](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(keepalive.idle.count()));
  set(IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(keepalive.interval.count()));
  if (keepalive.probes) {
    set(IPPROTO_TCP, TCP_KEEPCNT, *keepalive.probes);
  }
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
}

}  // namespace gtopk::transport
