// Collectives: sends every rank's bytes to all. A small amount goes directly (direct.hpp), unless
// ranks that share a host's link would send too much over it. Otherwise the ranks agree and then
// use the rings of their hosts (by_hosts.hpp).
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/by_hosts.hpp"
#include "src/collectives/direct.hpp"
#include "src/collectives/memory.hpp"
#include "src/collectives/path_costs.hpp"
#include "src/collectives/tree.hpp"

namespace gtopk {

using collectives::DensePaths;
using collectives::PathChoice;
using collectives::PathSetting;
using engine::GroupView;
using engine::Task;

namespace {

std::size_t total(std::span<const Bytes> buffers) {
  std::size_t bytes = 0;
  for (const Bytes& buffer : buffers) {
    bytes += buffer.size();
  }
  return bytes;
}

/// Whether the parts go directly. The rings need as many bytes and more messages, unless ranks
/// share their host's link.
Task<bool> goes_directly(GroupView& group, PathChoice& choice, std::size_t bytes) {
  if (group.size() == 1 || bytes > kShortAllGather) {
    co_return false;
  }
  const bool few = bytes <= PathChoice::kFewBytes || !choice.paths().share_links();
  if (few && choice.paths().may_go_directly() && choice.setting() == PathSetting::kAuto) {
    choice.take(true);
    co_return true;
  }
  Task<bool> choosing = choice.directly(&DensePaths::gather_directly, bytes);
  const bool answer = co_await choosing;
  co_return answer;
}

Task<void> gather(GroupView& group, std::span<const Bytes> buffers) {
  PathChoice choice(group);
  const std::size_t bytes = total(buffers);
  Task<bool> choosing = goes_directly(group, choice, bytes);
  const bool directly = co_await choosing;
  if (directly) {
    co_await collectives::gather_directly(group, buffers);
    co_return;
  }
  co_await collectives::agree(group, 0, 0, bytes <= kShortAllGather ? bytes : 0);
  co_await collectives::all_gather_by_hosts(group, buffers,
                                            collectives::Tree(group.size()).end_step());
}

void check_buffers(std::span<const Bytes> buffers, const GroupShape& group) {
  if (buffers.size() != group.size) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("all_gather needs one buffer per rank: {} expected, {} given",
                            group.size, buffers.size()));
  }
}

}  // namespace

Collective all_gather(const Buffers& buffers) {
  const DataType dtype = collectives::type_of_all("all_gather", buffers);
  Collective collective;
  collective.name = "all_gather";
  std::vector<std::uint64_t> sizes;
  sizes.reserve(buffers.size());
  std::vector<Bytes> bytes = collectives::bytes_of_all(buffers);
  for (const Bytes& buffer : bytes) {
    sizes.push_back(buffer.size());
  }
  collective.agreement = Agreement("all_gather").numbers("bytes", sizes).type("dtype", dtype);
  if (total(bytes) <= kShortAllGather) {
    collectives::take_host_only(collective, collectives::memory_of(buffers),
                                "copies all-gathers of at most 65536 bytes");
  }
  const auto held = std::make_shared<const std::vector<Bytes>>(std::move(bytes));
  collective.check = [held](const GroupShape& group) { check_buffers(*held, group); };
  collective.body = [held](GroupView& group) { return gather(group, *held); };
  collective.failed = collectives::forget_paths;
  collectives::take_moved(collective, collectives::memory_of(buffers));
  return collective;
}

}  // namespace gtopk
