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
  std::string address;     ///< Transport::address()
  bool left = false;       ///< it has left in order, and has no address any more
  std::string last_words;  ///< its last error before it left, if any
};

class Lookups {
 public:
  /// Finds a record or throws; returns soon after a stop is requested, if it can.
  using Find = std::function<PeerRecord(const std::stop_token&)>;
  /// Called on the lookup thread with the record, or with the reason why it was not found.
  /// Called on the engine thread if no lookup thread can be started.
  using Found = std::function<void(PeerRecord record, std::string error)>;

  /// executor: null makes a new thread.
  explicit Lookups(std::unique_ptr<Executor> executor = nullptr) : executor_(std::move(executor)) {}
  Lookups(const Lookups&) = delete;
  Lookups& operator=(const Lookups&) = delete;
  Lookups(Lookups&&) = delete;
  Lookups& operator=(Lookups&&) = delete;
  /// A lookup that does not return, as when torch's TCPStore waits for a server that is stopped, is
  /// abandoned after kLastLookup; its result is dropped.
  ~Lookups();

  /// Call on the engine thread.
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
  ComputeThread* thread_ = nullptr;  ///< the executor, if it is a thread made here
};

}  // namespace gtopk::engine
