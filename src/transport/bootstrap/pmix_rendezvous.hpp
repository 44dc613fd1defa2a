// Bootstrap: a job that PMIx started. Its ranks meet in the store that rank 0 serves, whose address
// PMIx brings to the others; the processes' addresses are PMIx's to keep. So nobody needs to be
// told a host or a port, any subset of the ranks can meet as a group, and rank 0 is asked for no
// address.
#pragma once

#include <cstdint>
#include <memory>

#include "gtopk/directory.hpp"
#include "gtopk/key_value_store.hpp"
#include "src/transport/base/clock.hpp"
#include "src/transport/bootstrap/pmix_client.hpp"
#include "src/transport/bootstrap/socket.hpp"
#include "src/transport/bootstrap/tcp_store.hpp"

namespace gtopk::bootstrap {

/// The job's store: rank 0 serves it and puts where, the others wait for that for `at_most`, and go
/// on as over TCP. Throws Error{kBootstrap}.
[[nodiscard]] std::unique_ptr<TcpStore> join_rendezvous(PmixClient& pmix,
                                                        transport::Duration at_most);

/// Rank 0: tells the others of `port` on its host. The others: that port, and an address of rank
/// 0's that answers here. Throws Error{kBootstrap}.
[[nodiscard]] Endpoint find_service(PmixClient& pmix, std::uint16_t port,
                                    transport::Duration at_most);

/// Groups meet in `store`; addresses are put into PMIx and got one by one.
[[nodiscard]] std::shared_ptr<Directory> directory_over(PmixClient& pmix,
                                                        std::unique_ptr<KeyValueStore> store);

}  // namespace gtopk::bootstrap
