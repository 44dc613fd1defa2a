// Communicator: the groups that count for process_statistics(), and the figures of groups that have
// ended.
#pragma once

#include <memory>

namespace gtopk {

namespace engine {
class Group;
}  // namespace engine

/// Counts a new group of this process.
void begin_counting(std::shared_ptr<const engine::Group> group);
/// Must be called when the group has ended. Its figures so far count, and the group itself is
/// released.
void end_counting(const engine::Group& group);

}  // namespace gtopk
