#include "src/torch_backend/store.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "gtopk/error.hpp"
#include "gtopk/launch.hpp"
#include "src/torch_backend/signals.hpp"

namespace gtopk::torch_backend {
namespace {

constexpr std::chrono::microseconds kFirstPause{200};
constexpr std::chrono::milliseconds kLongestPause{100};

struct Client {
  Client(const c10::intrusive_ptr<c10d::Store>& store, c10d::TCPStore& tcp)
      : of(store),
        connection(std::make_shared<StoreConnection>(tcp.getPort())),
        client(tcp.clone(), connection) {
    connection->made();
  }

  c10::intrusive_ptr<c10d::Store> of;
  std::shared_ptr<StoreConnection> connection;
  TorchStore client;
};

/// Returns the store itself or, if a waiting call keeps other threads out as in a TCPStore, a
/// separate client. Without it, a thread that waits in the store would keep this process from
/// looking up addresses, even the address of a rank that asks whether it is alive. All groups over
/// a store share one client, which is released with the last of them. (A weak reference of c10's to
/// a store would keep its server and its socket.)
std::shared_ptr<TorchStore> for_lookups(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* const tcp = dynamic_cast<c10d::TCPStore*>(store.get());
  if (tcp == nullptr) {
    return std::make_shared<TorchStore>(store);
  }
  static std::mutex mutex;
  static std::vector<std::weak_ptr<Client>> clients;
  const std::lock_guard lock(mutex);
  std::erase_if(clients, [](const auto& each) { return each.expired(); });
  for (const auto& each : clients) {
    if (const std::shared_ptr<Client> shared = each.lock(); shared && shared->of == store) {
      return {shared, &shared->client};
    }
  }
  try {
    const auto shared = std::make_shared<Client>(store, *tcp);
    clients.push_back(shared);
    return {shared, &shared->client};
  } catch (const std::exception& error) {
    LOG(WARNING) << "gtopk: could not open a separate connection to the store, so a thread that "
                    "waits in the store delays lookups of addresses: "
                 << error.what();
    return std::make_shared<TorchStore>(store);
  }
}

}  // namespace

template <class F>
auto TorchStore::calling(std::string_view what, std::string_view key, F f) {
  if (connection_ && connection_->closed()) {
    throw Error(ErrorKind::kBootstrap,
                c10::str("torch's Store: ", what, " '", key, "': its server has gone"));
  }
  try {
    return f();
  } catch (const HandlerRaised&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kBootstrap,
                c10::str("torch's Store: ", what, " '", key, "': ", error.what()));
  }
}

void TorchStore::set(std::string_view key, std::string_view value) {
  calling("setting", key, [&] {
    store_->set(std::string(key), std::vector<std::uint8_t>(value.begin(), value.end()));
  });
}

std::optional<std::string> TorchStore::find(std::string_view key,
                                            std::chrono::nanoseconds at_most) {
  const std::vector<std::string> keys{std::string(key)};
  const auto end = std::chrono::steady_clock::now() + at_most;
  // torch's own wait() holds a lock that keeps other threads out of the store, and writes warnings
  // to stderr when it times out.
  std::chrono::nanoseconds pause = kFirstPause;
  return calling("looking for", key, [&]() -> std::optional<std::string> {
    while (!store_->check(keys)) {
      const std::chrono::nanoseconds rest = end - std::chrono::steady_clock::now();
      if (rest <= std::chrono::nanoseconds::zero()) {
        return std::nullopt;
      }
      if (pause == kLongestPause) {
        run_signal_handlers();
      }
      std::this_thread::sleep_for(std::min(pause, rest));
      pause = std::min<std::chrono::nanoseconds>(pause * 2, kLongestPause);
    }
    const std::vector<std::uint8_t> value = store_->get(keys.front());
    return std::string(value.begin(), value.end());
  });
}

void TorchStore::remove(std::string_view key) {
  try {
    store_->deleteKey(std::string(key));
  } catch (const std::exception& error) {  // not every store supports this
    LOG(INFO) << "gtopk: could not delete '" << key << "' from the store: " << error.what();
  }
}

std::int64_t TorchStore::add(std::string_view key, std::int64_t delta) {
  return calling("adding to", key, [&] { return store_->add(std::string(key), delta); });
}

std::shared_ptr<Directory> directory_of(const c10::intrusive_ptr<c10d::Store>& group_store) {
  auto job_store = group_store;
  if (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(group_store.get())) {
    job_store = prefixed->getUnderlyingNonPrefixStore();
  }
  return directory_over(std::make_shared<TorchStore>(group_store), for_lookups(job_store),
                        job_secret());
}

}  // namespace gtopk::torch_backend
