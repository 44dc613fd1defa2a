#include "src/engine/group.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "src/engine/operation.hpp"

namespace gtopk::engine {

Group::Group(GroupSpec spec, std::vector<transport::PeerId> peers, transport::Transport& transport)
    : credits(peers.size()),
      find_peer(std::move(spec.find_peer)),
      ids_(std::move(spec.ids)),
      peers_(std::move(peers)),
      hosts_(spec.hosts.empty() ? HostMap::apart(size()) : HostMap(spec.hosts)) {
  GroupIdentity identity{std::move(spec.name), spec.rank, {}};
  identity.members.reserve(peers_.size());
  for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) {
    const transport::PeerInfo& info = transport.peer(peers_[rank]);
    identity.members.push_back(
        fmt::format("rank {} (host {}, pid {})", rank, info.host, info.process));
  }
  identity_ = std::make_shared<const GroupIdentity>(std::move(identity));
}

std::string Group::last_operation() const {
  return last_name_.empty() ? std::string() : fmt::format("{} #{}", last_name_, last_sequence_);
}

std::optional<std::uint32_t> Group::rank_of(transport::PeerId peer) const {
  const auto found = std::find(peers_.begin(), peers_.end(), peer);
  if (found == peers_.end()) {
    return std::nullopt;
  }
  return static_cast<std::uint32_t>(found - peers_.begin());
}

}  // namespace gtopk::engine
