// Engine: the groups that this process is in, by the numbers that it gave them. The table does not
// know what runs in a group.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/engine/group.hpp"
#include "src/engine/group_ids.hpp"
#include "src/transport/base/tag.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::engine {

class GroupTable {
 public:
  /// Reserves a number that no group of this process has. Returns nullopt if all are taken.
  [[nodiscard]] std::optional<std::uint32_t> reserve();
  /// Releases the number of a group that was not created after all.
  void release(std::uint32_t id) { ids_.give_back(id); }
  /// Whether the number is reserved, no matter whether the group has been made.
  [[nodiscard]] bool taken(std::uint32_t id) const { return ids_.taken(id); }

  /// Whether a group of that number has ever existed or was about to.
  [[nodiscard]] bool ever_taken(std::uint32_t id) const { return ids_.ever_taken(id); }
  /// The number of ranks of the last group with that number, while the number is free. It is 0 if
  /// there was no such group.
  [[nodiscard]] std::uint32_t former_size(std::uint32_t id) const {
    return id < former_sizes_.size() ? former_sizes_[id] : 0;
  }
  /// Whether a number is reserved for a group that is still meeting.
  [[nodiscard]] bool awaits_members() const { return ids_.count() > groups_.size(); }

  /// Makes a group whose number is reserved. Throws Error{kInvalidArgument} for an invalid spec,
  /// Error{kBootstrap} for a card that cannot be read.
  std::shared_ptr<Group> make(GroupSpec spec, transport::Transport& transport);
  /// Removes the group and releases its number.
  void remove(const Group& group);

  [[nodiscard]] std::shared_ptr<Group> find(std::uint32_t id) const;
  [[nodiscard]] const std::vector<std::shared_ptr<Group>>& all() const { return groups_; }

 private:
  GroupIds ids_;
  std::array<std::uint32_t, transport::kMaxGroups> former_sizes_{};
  std::vector<std::shared_ptr<Group>> groups_;
};

}  // namespace gtopk::engine
