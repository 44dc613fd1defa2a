#include "src/transport/bootstrap/pmix_rendezvous.hpp"

#include <unistd.h>

#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/transport/base/log.hpp"
#include "src/transport/base/tag.hpp"
#include "src/transport/bootstrap/handshake.hpp"
#include "src/transport/bootstrap/own_addresses.hpp"
#include "src/transport/bootstrap/record.hpp"
#include "src/transport/bootstrap/tcp_store.hpp"

namespace gtopk::bootstrap {
namespace {

constexpr std::string_view kRendezvous = "gtopk/rendezvous";  // a key in PMIx
constexpr std::string_view kService = "gtopk/service";        // a key in the store

/// The length of a secret, enough that it cannot be guessed.
constexpr std::size_t kSecretBytes = 32;

/// The addresses at which rank 0 serves, and the secret that distinguishes it from other listeners.
/// Hosts may share addresses, such as the addresses of container bridges.
struct Rendezvous {
  std::vector<Endpoint> ways;
  std::string secret;
};

std::string encode(std::string_view secret, std::uint16_t port,
                   const std::vector<std::string>& addresses) {
  std::string bytes;
  put(bytes, secret);
  put(bytes, port);
  put(bytes, addresses.size());
  for (const std::string& address : addresses) {
    put(bytes, address);
  }
  return bytes;
}

Rendezvous decode(std::string_view bytes) {
  RecordReader reader(fmt::format("PMIx's '{}' of rank 0", kRendezvous), bytes);
  Rendezvous rendezvous;
  rendezvous.secret = reader.field();
  const auto port =
      static_cast<std::uint16_t>(reader.number(std::numeric_limits<std::uint16_t>::max()));
  rendezvous.ways.resize(reader.number(bytes.size()));
  for (Endpoint& way : rendezvous.ways) {
    way = {.host = std::string(reader.field()), .port = port};
  }
  reader.expect_end();
  return rendezvous;
}

/// Rank 0's server, from the first call to the end of the process, because values that rank 0 has
/// put cannot be changed, and ranks may meet again before rank 0 has left the previous meeting. At
/// the end it waits for the other ranks to leave.
class JobServer {
 public:
  /// Starts the server; returns the address at which this process reaches it.
  [[nodiscard]] static Rendezvous start(PmixClient& pmix, transport::Duration at_most) {
    static JobServer server;
    const std::scoped_lock lock(server.mutex_);
    if (!server.server_) {
      RendezvousListener listener(Endpoint{.host = "", .port = 0});
      const std::uint16_t port = listener.port();
      server.secret_ = draw_secret(kSecretBytes);
      auto made = std::make_unique<RendezvousServer>(std::move(listener), server.secret_);
      pmix.put(kRendezvous, encode(server.secret_, port, own_addresses()));
      server.server_ = std::move(made);
    }
    server.drain_at_most_ = at_most;
    return {.ways = {{.host = "localhost", .port = server.server_->port()}},
            .secret = server.secret_};
  }

  JobServer(const JobServer&) = delete;
  JobServer& operator=(const JobServer&) = delete;
  JobServer(JobServer&&) = delete;
  JobServer& operator=(JobServer&&) = delete;

 private:
  JobServer() = default;
  ~JobServer() {
    if (!server_) {
      return;
    }
    if (made_by_ != getpid()) {
      static_cast<void>(server_.release());  // its thread exists only in the parent
      return;
    }
    if (!server_->drain(drain_at_most_)) {
      warn_of_clients(drain_at_most_);
    }
  }

  pid_t made_by_ = getpid();
  std::mutex mutex_;
  transport::Duration drain_at_most_{};
  std::string secret_;
  std::unique_ptr<RendezvousServer> server_;
};

/// The value that drawn_secret() returns in this process.
class DrawnSecret {
 public:
  [[nodiscard]] static DrawnSecret& of_this_process() {
    static DrawnSecret drawn;
    return drawn;
  }
  void set(const std::string& secret) {
    const std::scoped_lock lock(mutex_);
    secret_ = secret;
  }
  [[nodiscard]] std::string get() {
    const std::scoped_lock lock(mutex_);
    return secret_;
  }

 private:
  std::mutex mutex_;
  std::string secret_;
};

class PmixDirectory final : public Directory {
 public:
  PmixDirectory(PmixClient& pmix, std::unique_ptr<KeyValueStore> store)
      : pmix_(pmix), meetings_(gtopk::directory_over(std::move(store))) {}

  void publish(std::string_view name, std::string_view address) override {
    const std::scoped_lock lock(mutex_);
    if (own_name_ != name) {
      pmix_.put(name, address);
      own_name_ = name;
      own_address_ = address;
    } else if (own_address_ != address) {
      meetings_->publish(name, address);  // PMIx cannot replace the address
    }
  }

  std::optional<std::string> lookup(std::string_view name,
                                    std::chrono::nanoseconds at_most) override {
    try {
      if (!store_failed_) {
        if (auto replaced = meetings_->lookup(name, std::chrono::nanoseconds::zero())) {
          return replaced;
        }
      }
    } catch (const Error& error) {
      store_failed_ = true;  // the store ends with rank 0, but PMIx does not
      transport::log().debug("{}", error.what());
    }
    return pmix_.find(rank_of(name), name, at_most);
  }

  /// PMIx looks up by rank while groups look up by name, so each card is sent with both.
  std::vector<std::string> meet(const Presence& self, std::chrono::nanoseconds at_most) override {
    Presence labelled = self;
    labelled.card.clear();
    put(labelled.card, pmix_.rank());
    put(labelled.card, own_name());
    put(labelled.card, self.card);
    std::vector<std::string> cards = meetings_->meet(labelled, at_most);
    const std::scoped_lock lock(mutex_);
    for (std::string& card : cards) {
      RecordReader reader(fmt::format("group '{}': a rank's card", self.group), card);
      const std::uint32_t rank = reader.number32(transport::kMaxRanks - 1);
      ranks_[std::string(reader.field())] = rank;
      std::string own(reader.field());
      reader.expect_end();
      card = std::move(own);
    }
    return cards;
  }

 private:
  std::string own_name() {
    const std::scoped_lock lock(mutex_);
    return own_name_;
  }

  std::uint32_t rank_of(std::string_view name) {
    const std::scoped_lock lock(mutex_);
    const auto found = ranks_.find(name);
    if (found == ranks_.end()) {
      throw Error(ErrorKind::kBootstrap,
                  fmt::format("no rank that this one has met has published '{}'", name));
    }
    return found->second;
  }

  PmixClient& pmix_;
  std::shared_ptr<Directory> meetings_;
  std::atomic<bool> store_failed_{false};
  std::mutex mutex_;  ///< guards the members below
  std::string own_name_;
  std::string own_address_;
  std::map<std::string, std::uint32_t, std::less<>> ranks_;  ///< ranks, by published name
};

Rendezvous rendezvous_of(PmixClient& pmix, transport::Duration at_most) {
  if (pmix.rank() == 0) {
    return JobServer::start(pmix, at_most);
  }
  const auto bytes = pmix.find(0, kRendezvous, at_most);
  if (!bytes) {
    throw Error(ErrorKind::kBootstrap,
                fmt::format("{}: rank 0 did not announce the rendezvous within {}: did "
                            "it fail, or not start?",
                            pmix.description(), describe(at_most)));
  }
  Rendezvous found = decode(*bytes);
  transport::log().info("launch: the rendezvous of rank 0 is at {}, by PMIx",
                        to_string(found.ways));
  return found;
}

}  // namespace

std::unique_ptr<TcpStore> join_rendezvous(PmixClient& pmix, transport::Duration at_most) {
  Rendezvous found = rendezvous_of(pmix, at_most);
  return std::make_unique<TcpStore>(std::move(found.ways), at_most, std::move(found.secret));
}

std::string drawn_secret() { return DrawnSecret::of_this_process().get(); }

Endpoint find_service(PmixClient& pmix, std::uint16_t port, transport::Duration at_most) {
  Rendezvous found = rendezvous_of(pmix, at_most);
  DrawnSecret::of_this_process().set(found.secret);
  const auto store =
      std::make_unique<TcpStore>(std::move(found.ways), at_most, std::move(found.secret));
  if (pmix.rank() == 0) {
    store->set(kService, std::to_string(port));
    return {.host = "localhost", .port = port};
  }
  const std::string told = store->get(kService, at_most);
  return {.host = store->server_address(), .port = static_cast<std::uint16_t>(std::stoul(told))};
}

std::shared_ptr<Directory> directory_over(PmixClient& pmix, std::unique_ptr<KeyValueStore> store) {
  return std::make_shared<PmixDirectory>(pmix, std::move(store));
}

}  // namespace gtopk::bootstrap
