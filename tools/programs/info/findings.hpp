// gtopk-info --doctor: what the tests of all pairs show together. These are pure functions of the
// measurements.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/programs/info/link_end.hpp"
#include "tools/programs/info/pairs.hpp"

namespace gtopk::programs::info {

/// One rank, as it describes itself to other ranks.
struct Member {
  std::string version;  ///< version of gtopk; empty if the rank has not come
  std::string machine;
  std::string host;           ///< ranks with equal names share a host
  std::string boot;           ///< equal on one machine; empty if unknown
  std::uint64_t network = 0;  ///< network namespace; 0 if unknown
  std::uint64_t ipc = 0;      ///< IPC namespace; 0 if unknown
};

struct Tested {
  Pair pair{};
  std::string transports{};  ///< such as "tcp/eth0"
  double latency = 0;        ///< seconds, one way
  double forth = 0;          ///< bytes per second, from `from` to `to`
  double back = 0;
  LinkEnd from_end{};  ///< the end of TCP at `from`
  LinkEnd to_end{};
  std::string error{};  ///< empty if everything was measured
};

struct Examined {
  std::vector<Member> members;  ///< indexed by rank
  std::vector<Host> hosts;
  std::vector<Tested> pairs;
};

/// Returns the ranks that have not come.
[[nodiscard]] std::vector<std::uint32_t> absent(const Examined& job);
/// Returns the failures, with a sentence for each.
[[nodiscard]] std::vector<std::string> failures(const Examined& job);
/// Returns what works but could be better.
[[nodiscard]] std::vector<std::string> findings(const Examined& job);

/// Returns matrices of latency and bandwidth, and the transports.
[[nodiscard]] std::vector<std::string> text_of(const Examined& job);
[[nodiscard]] nlohmann::json json_of(const Examined& job);

}  // namespace gtopk::programs::info
