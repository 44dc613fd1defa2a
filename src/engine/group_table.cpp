#include "src/engine/group_table.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "src/engine/operation.hpp"
#include "src/transport/base/tag.hpp"

namespace gtopk::engine {

std::optional<std::uint32_t> GroupTable::reserve() {
  const std::optional<std::uint32_t> id = ids_.take();
  if (id) {
    former_sizes_[*id] = 0;
  }
  return id;
}

std::shared_ptr<Group> GroupTable::make(GroupSpec spec, transport::Transport& transport) {
  const std::size_t size = spec.cards.size();
  const bool fits =
      std::ranges::all_of(spec.ids, [](std::uint32_t id) { return id < transport::kMaxGroups; });
  const bool hosts_fit = spec.hosts.empty() || spec.hosts.size() == size;
  if (!fits || !hosts_fit || size > transport::kMaxRanks || spec.ids.size() != size ||
      spec.rank >= size) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format(
            "group '{}': expected a rank below the size, a size of at most {}, one id below "
            "{} per rank, and one host name per rank or none; got rank {} of {}, ids: {}, "
            "host names: {}",
            spec.name, transport::kMaxRanks, transport::kMaxGroups, spec.rank, size,
            spec.ids.size(), spec.hosts.size()));
  }
  const std::uint32_t id = spec.ids[spec.rank];
  if (!ids_.taken(id) || find(id) != nullptr) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("group '{}': id {} is {}", spec.name, id,
                            ids_.taken(id) ? "taken" : "not reserved"));
  }
  std::vector<transport::PeerId> peers;
  peers.reserve(size);
  for (const std::string& card : spec.cards) {
    peers.push_back(transport.add_peer(card));
  }
  auto group = std::make_shared<Group>(std::move(spec), std::move(peers), transport);
  groups_.push_back(group);
  return group;
}

void GroupTable::remove(const Group& group) {
  const std::uint32_t id = group.id();
  former_sizes_[id] = group.size();
  std::erase_if(groups_, [&](const auto& held) { return held.get() == &group; });
  ids_.give_back(id);
}

std::shared_ptr<Group> GroupTable::find(std::uint32_t id) const {
  for (const auto& group : groups_) {
    if (group->id() == id) {
      return group;
    }
  }
  return nullptr;
}

}  // namespace gtopk::engine
