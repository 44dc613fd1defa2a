// Engine: which ranks of a group share a host. This is pure arithmetic; it knows neither the
// transport nor where host names come from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gtopk::engine {

/// Maps ranks to hosts. Hosts are numbered in the order of their lowest ranks.
class HostMap {
 public:
  /// `names` holds the name of each rank's host, indexed by rank. Equal names mean the same host.
  explicit HostMap(std::span<const std::string> names);
  /// Puts each rank on its own host.
  [[nodiscard]] static HostMap apart(std::uint32_t ranks);

  [[nodiscard]] std::uint32_t ranks() const { return static_cast<std::uint32_t>(host_of_.size()); }
  [[nodiscard]] std::uint32_t hosts() const {
    return static_cast<std::uint32_t>(begin_.size() - 1);
  }
  [[nodiscard]] std::uint32_t host_of(std::uint32_t rank) const { return host_of_.at(rank); }
  /// The ranks of a host, ascending.
  [[nodiscard]] std::span<const std::uint32_t> ranks_of(std::uint32_t host) const {
    return std::span(by_host_).subspan(begin_.at(host), begin_.at(host + 1) - begin_[host]);
  }
  /// The lowest rank of a host.
  [[nodiscard]] std::uint32_t leader(std::uint32_t host) const { return ranks_of(host).front(); }

 private:
  /// `host_of` holds host numbers, indexed by rank.
  explicit HostMap(std::vector<std::uint32_t> host_of);

  std::vector<std::uint32_t> host_of_;
  std::vector<std::uint32_t> by_host_;  ///< ranks, ordered by host
  std::vector<std::uint32_t> begin_;    ///< where each host begins in by_host_, and the end
};

}  // namespace gtopk::engine
