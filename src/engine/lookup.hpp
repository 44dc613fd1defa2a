// Engine: the thread that asks the directory about peers, which may block. It starts with the first
// question.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>

#include "src/engine/compute.hpp"

namespace gtopk::engine {

/// The directory's record of a peer.
struct PeerRecord {
  std::string address;     ///< the result of Transport::address()
  bool left = false;       ///< the peer has left in order and has no address any more
  std::string last_words;  ///< the peer's last error before it left, if any
};

class Lookups {
 public:
  /// Finds a record or throws; returns soon after a stop is requested, if it can.
  using Find = std::function<PeerRecord(const std::stop_token&)>;
  /// Called on the lookup thread with the record, or with the reason why it was not found. If no
  /// lookup thread can be started, it is called on the engine thread.
  using Found = std::function<void(PeerRecord record, std::string error)>;

  /// If `executor` is null, makes a new thread.
  explicit Lookups(std::unique_ptr<Executor> executor = nullptr) : executor_(std::move(executor)) {}
  Lookups(const Lookups&) = delete;
  Lookups& operator=(const Lookups&) = delete;
  Lookups(Lookups&&) = delete;
  Lookups& operator=(Lookups&&) = delete;
  /// A lookup that does not return is abandoned after kLastLookup, and its result is dropped. This
  /// happens, for example, when torch's TCPStore waits for a server that is stopped.
  ~Lookups();

  /// Starts a lookup. Must be called on the engine thread.
  void run(Find find, Found found);
  /// Makes every lookup fail soon, including earlier ones.
  void stop() { stop_.request_stop(); }

 private:
  static constexpr std::chrono::seconds kLastLookup{1};

  struct Listener {
    std::mutex mutex;
    bool listens = true;
  };

  std::stop_source stop_;
  std::shared_ptr<Listener> listener_ = std::make_shared<Listener>();
  std::unique_ptr<Executor> executor_;
  ComputeThread* thread_ = nullptr;  ///< the executor, if this object made it
};

}  // namespace gtopk::engine
