// gtopk-info --doctor: what the tests of all pairs show together. Pure functions of the
// measurements.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/programs/info/link_end.hpp"
#include "tools/programs/info/pairs.hpp"

namespace gtopk::programs::info {

/// One rank, as it describes itself to the others.
struct Member {
  std::string version;  ///< of gtopk; empty: the rank has not come
  std::string machine;
  std::string host;           ///< ranks with equal names share a host
  std::string boot;           ///< equal on one machine; empty: unknown
  std::uint64_t network = 0;  ///< namespace; 0: unknown
  std::uint64_t ipc = 0;      ///< likewise
};

struct Tested {
  Pair pair{};
  std::string transports{};  ///< "tcp/eth0"
  double latency = 0;        ///< seconds, one way
  double forth = 0;          ///< bytes per second, from `from` to `to`
  double back = 0;
  LinkEnd from_end{};  ///< of TCP
  LinkEnd to_end{};
  std::string error{};  ///< empty: everything was measured
};

struct Examined {
  std::vector<Member> members;  ///< by rank
  std::vector<Host> hosts;
  std::vector<Tested> pairs;
};

/// Ranks that have not come.
[[nodiscard]] std::vector<std::uint32_t> absent(const Examined& job);
/// What failed, in a sentence each.
[[nodiscard]] std::vector<std::string> failures(const Examined& job);
/// What works but could be better.
[[nodiscard]] std::vector<std::string> findings(const Examined& job);

/// Matrices of latency and bandwidth, and the transports.
[[nodiscard]] std::vector<std::string> text_of(const Examined& job);
[[nodiscard]] nlohmann::json json_of(const Examined& job);

}  // namespace gtopk::programs::info
