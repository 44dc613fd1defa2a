// Engine: the thread that looks up peers' addresses, which may block. It starts with the first
// lookup.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "src/engine/compute.hpp"

namespace gtopk::engine {

class Lookups {
 public:
  /// Finds an address or throws; returns soon after a stop is requested.
  using Find = std::function<std::string(const std::stop_token&)>;
  /// Called on the lookup thread with the address, or with the reason why it was not found. Called
  /// on the engine thread if no lookup thread can be started.
  using Found = std::function<void(std::string address, std::string error)>;

  /// Engine thread.
  void run(Find find, Found found);
  /// Makes every lookup fail soon, including earlier ones.
  void stop() { stop_.request_stop(); }

 private:
  std::stop_source stop_;
  std::optional<ComputeThread> thread_;  ///< last: its jobs use the above
};

}  // namespace gtopk::engine
