// Engine: the thread that asks the directory about peers, which may block. It starts with the first
// question.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "src/engine/compute.hpp"

namespace gtopk::engine {

/// What the directory has of a peer.
struct PeerRecord {
  std::string address;     ///< Transport::address()
  bool left = false;       ///< it has left in order: there is no address any more
  std::string last_words;  ///< its last error before it left, if any
};

class Lookups {
 public:
  /// Finds a record or throws; returns soon after a stop is requested.
  using Find = std::function<PeerRecord(const std::stop_token&)>;
  /// Called on the lookup thread with the record, or with the reason why it was not found.
  /// Called on the engine thread if no lookup thread can be started.
  using Found = std::function<void(PeerRecord record, std::string error)>;

  /// executor: null for a thread of its own.
  explicit Lookups(std::unique_ptr<Executor> executor = nullptr) : executor_(std::move(executor)) {}

  /// Engine thread.
  void run(Find find, Found found);
  /// Makes every lookup fail soon, including earlier ones.
  void stop() { stop_.request_stop(); }

 private:
  std::stop_source stop_;
  std::unique_ptr<Executor> executor_;  ///< last: its jobs use the above
};

}  // namespace gtopk::engine
