// Engine: the thread that asks for peers' addresses, which may block. It starts with the first
// question.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "src/engine/compute.hpp"

namespace gtopk::engine {

class Lookups {
 public:
  /// Finds an address or throws; gives up soon after a stop is requested.
  using Find = std::function<std::string(const std::stop_token&)>;
  /// On the lookup thread: the address, or why it was not found.
  using Found = std::function<void(std::string address, std::string error)>;

  /// Engine thread.
  void run(Find find, Found found);
  /// From here on every question fails soon, those asked before included.
  void stop() { stop_.request_stop(); }

 private:
  std::stop_source stop_;
  std::optional<ComputeThread> thread_;  ///< last: its jobs use the above
};

}  // namespace gtopk::engine
