// Collectives: the rings of a group whose ranks share hosts. Messages inside a host go through
// shared memory; the ranks of a host share its link. This is pure arithmetic.
//
// If all hosts have the same number of ranks, at least two, there are two levels: a ring inside
// each host, and rings across the hosts, through the ranks with the same place on each host. A
// host's link then carries only as much as a single rank in its place would send. Otherwise one
// ring goes through all ranks, host after host: in each step one message leaves each host, and one
// enters it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/collectives/ring.hpp"
#include "src/engine/host_map.hpp"

namespace gtopk::collectives {

class HostRings {
 public:
  HostRings(const engine::HostMap& hosts, std::uint32_t rank);

  /// The ranks of each host if there are two levels, else 0.
  [[nodiscard]] static std::uint32_t two_levels(const engine::HostMap& hosts);

  [[nodiscard]] bool two_levels() const { return each_ != 0; }
  [[nodiscard]] std::uint32_t hosts() const { return static_cast<std::uint32_t>(across_.size()); }
  /// The number of ranks of a host.
  [[nodiscard]] std::uint32_t each() const { return each_; }
  /// The rank with that place on that host; needs two levels.
  [[nodiscard]] std::uint32_t rank_at(std::uint32_t host, std::uint32_t place) const {
    return all_[host * each_ + place];
  }

  // The rings below are views of this object.
  /// All ranks, host after host.
  [[nodiscard]] Ring all() const& { return {all_, place_}; }
  Ring all() && = delete;
  /// With two levels: the ranks of this rank's host, and the ranks with its place on each host.
  [[nodiscard]] Ring within() const& {
    return {std::span(all_).subspan(std::size_t{host_} * each_, each_), place_ % each_};
  }
  Ring within() && = delete;
  [[nodiscard]] Ring across() const& { return {across_, host_}; }
  Ring across() && = delete;

 private:
  std::uint32_t each_;
  std::uint32_t host_;
  std::uint32_t place_ = 0;
  std::vector<std::uint32_t> all_;
  std::vector<std::uint32_t> across_;
};

}  // namespace gtopk::collectives
