// Bootstrap: a job started by PMIx. Its ranks meet in the store that rank 0 serves, whose address
// the other ranks get from PMIx; PMIx also keeps the processes' addresses. So no host or port needs
// to be configured, any subset of the ranks can meet as a group, and rank 0 does not serve
// addresses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gtopk/directory.hpp"
#include "gtopk/key_value_store.hpp"
#include "src/transport/base/clock.hpp"
#include "src/transport/bootstrap/pmix_client.hpp"
#include "src/transport/bootstrap/socket.hpp"
#include "src/transport/bootstrap/tcp_store.hpp"

namespace gtopk::bootstrap {

/// Joins the job's store. Rank 0 serves it and puts its address into PMIx; other ranks wait up to
/// `at_most` for the address, and then connect as over TCP. Throws Error{kBootstrap}.
[[nodiscard]] std::unique_ptr<TcpStore> join_rendezvous(PmixClient& pmix,
                                                        transport::Duration at_most);

/// On rank 0, publishes `port`. On other ranks, returns that port and an address of rank 0 that
/// they can reach. Throws Error{kBootstrap}.
[[nodiscard]] Endpoint find_service(PmixClient& pmix, std::uint16_t port,
                                    transport::Duration at_most);

/// The secret that rank 0 drew for the job, if this process has found a service; otherwise empty,
/// because other ranks may not know it either.
[[nodiscard]] std::string drawn_secret();

/// Makes a directory whose groups meet in `store`. Addresses are put into PMIx and fetched one by
/// one.
[[nodiscard]] std::shared_ptr<Directory> directory_over(PmixClient& pmix,
                                                        std::unique_ptr<KeyValueStore> store);

}  // namespace gtopk::bootstrap
