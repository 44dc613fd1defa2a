// Bootstrap: the store of the process that serves the plain TCP rendezvous.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gtopk/key_value_store.hpp"
#include "src/transport/base/clock.hpp"

namespace gtopk::bootstrap {

/// Serves at `port` on every interface. If the store is destroyed while others are connected, the
/// server stays for them until this process ends, and the process then waits for them, for at most
/// `at_most` in all. If this process serves at that port again before it ends, it uses the same
/// server. So ranks may leave a job and join it again in any order. Throws Error{kBootstrap} if the
/// port is taken.
[[nodiscard]] std::unique_ptr<KeyValueStore> serve_at(std::uint16_t port,
                                                      transport::Duration at_most,
                                                      const std::string& secret);

}  // namespace gtopk::bootstrap
