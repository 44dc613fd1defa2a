#include "src/collectives/host_rings.hpp"

namespace gtopk::collectives {

using engine::HostMap;

std::uint32_t HostRings::two_levels(const HostMap& hosts) {
  const std::size_t each = hosts.ranks_of(0).size();
  if (hosts.hosts() == 1 || each == 1) {
    return 0;
  }
  for (std::uint32_t host = 1; host < hosts.hosts(); ++host) {
    if (hosts.ranks_of(host).size() != each) {
      return 0;
    }
  }
  return static_cast<std::uint32_t>(each);
}

HostRings::HostRings(const HostMap& hosts, std::uint32_t rank)
    : each_(two_levels(hosts)), host_(hosts.host_of(rank)) {
  for (std::uint32_t host = 0; host < hosts.hosts(); ++host) {
    for (const std::uint32_t member : hosts.ranks_of(host)) {
      if (member == rank) {
        place_ = static_cast<std::uint32_t>(all_.size());
      }
      all_.push_back(member);
    }
  }
  if (each_ != 0) {
    for (std::uint32_t host = 0; host < hosts.hosts(); ++host) {
      across_.push_back(rank_at(host, place_ % each_));
    }
  }
}

}  // namespace gtopk::collectives
