#include "src/transport/bootstrap/served_store.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "src/transport/base/log.hpp"
#include "src/transport/bootstrap/rendezvous_server.hpp"
#include "src/transport/bootstrap/tcp_store.hpp"

namespace gtopk::bootstrap {
namespace {

using std::chrono::steady_clock;
using transport::Duration;
using transport::TimePoint;

/// Servers whose stores were destroyed while ranks were still connected. These ranks have not left
/// yet, or have already joined again, as this process is about to do.
class LeftServers {
 public:
  [[nodiscard]] static LeftServers& of_this_process() {
    static LeftServers servers;
    return servers;
  }
  LeftServers(const LeftServers&) = delete;
  LeftServers& operator=(const LeftServers&) = delete;
  LeftServers(LeftServers&&) = delete;
  LeftServers& operator=(LeftServers&&) = delete;

  void add(std::unique_ptr<RendezvousServer> server, std::string secret, Duration at_most) {
    const std::scoped_lock lock(mutex_);
    end_deserted();
    left_.push_back({std::move(server), std::move(secret), at_most, steady_clock::now() + at_most});
  }

  /// The server at that port with that secret, if any.
  [[nodiscard]] std::unique_ptr<RendezvousServer> take(std::uint16_t port,
                                                       const std::string& secret) {
    const std::scoped_lock lock(mutex_);
    end_deserted();
    const auto found = std::ranges::find_if(left_, [&](const Left& each) {
      return each.server->port() == port && each.secret == secret;
    });
    if (found == left_.end()) {
      return nullptr;
    }
    std::unique_ptr<RendezvousServer> server = std::move(found->server);
    left_.erase(found);
    return server;
  }

 private:
  struct Left {
    std::unique_ptr<RendezvousServer> server;
    std::string secret;
    Duration at_most;
    TimePoint until;
  };

  LeftServers() { static_cast<void>(transport::log()); }  // the log must outlive it
  ~LeftServers() {
    forget_those_of_the_parent();
    for (const Left& each : left_) {
      if (!each.server->drain(std::max(each.until - steady_clock::now(), Duration::zero()))) {
        warn_of_clients(each.at_most);
      }
    }
  }

  /// Forgets the servers in a forked child, which does not have their threads.
  void forget_those_of_the_parent() {
    if (made_by_ == getpid()) {
      return;
    }
    made_by_ = getpid();
    for (Left& each : left_) {
      static_cast<void>(each.server.release());
    }
    left_.clear();
  }

  void end_deserted() {
    forget_those_of_the_parent();
    std::erase_if(left_, [](const Left& each) {
      return each.until <= steady_clock::now() || each.server->drain(Duration::zero());
    });
  }

  pid_t made_by_ = getpid();
  std::mutex mutex_;
  std::vector<Left> left_;
};

class ServedStore final : public KeyValueStore {
 public:
  ServedStore(std::unique_ptr<RendezvousServer> server, Duration at_most, std::string secret)
      : at_most_(at_most),
        secret_(std::move(secret)),
        server_(std::move(server)),
        client_(std::in_place, std::vector{Endpoint{.host = "localhost", .port = server_->port()}},
                at_most, secret_) {}
  ServedStore(const ServedStore&) = delete;
  ServedStore& operator=(const ServedStore&) = delete;
  ServedStore(ServedStore&&) = delete;
  ServedStore& operator=(ServedStore&&) = delete;
  ~ServedStore() override {
    client_.reset();
    if (server_->drain(Duration::zero())) {
      return;
    }
    LeftServers::of_this_process().add(std::move(server_), std::move(secret_), at_most_);
  }

  void set(std::string_view key, std::string_view value) override { client_->set(key, value); }
  std::optional<std::string> find(std::string_view key, Duration at_most) override {
    return client_->find(key, at_most);
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return client_->add(key, delta);
  }
  void remove(std::string_view key) override { client_->remove(key); }

 private:
  Duration at_most_;
  std::string secret_;
  std::unique_ptr<RendezvousServer> server_;
  std::optional<TcpStore> client_;
};

}  // namespace

std::unique_ptr<KeyValueStore> serve_at(std::uint16_t port, Duration at_most,
                                        const std::string& secret) {
  std::unique_ptr<RendezvousServer> server = LeftServers::of_this_process().take(port, secret);
  if (server == nullptr) {
    server = std::make_unique<RendezvousServer>(
        RendezvousListener(Endpoint{.host = "", .port = port}), secret);
  }
  return std::make_unique<ServedStore>(std::move(server), at_most, secret);
}

}  // namespace gtopk::bootstrap
