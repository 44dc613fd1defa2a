// Collectives: sends every rank's parts to their receivers. All ranks agree on the lengths, then
// each message goes straight to its receiver, so every byte is sent once. In round s a rank sends
// to rank + s, so no two ranks send to the same rank; a few rounds overlap, so that short messages
// do not wait for one another.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/lengths.hpp"
#include "src/collectives/memory.hpp"

namespace gtopk {
namespace {

using engine::GroupView;
using engine::Message;
using engine::Task;

/// The number of sends of one rank in flight at once.
constexpr std::size_t kWindow = 8;

struct Parts {
  std::vector<ConstBytes> sent;
  std::vector<Bytes> buffers;
};

Task<void> exchange(GroupView& group, const Parts& parts) {
  const std::uint32_t ranks = group.size();
  const std::uint32_t rank = group.rank();
  std::vector<std::uint64_t> sent;
  std::vector<std::uint64_t> expected;
  for (std::uint32_t other = 0; other < ranks; ++other) {
    sent.push_back(parts.sent[other].size());
    expected.push_back(parts.buffers[other].size());
  }
  const std::uint32_t step = collectives::step_after_lengths(ranks);
  std::vector<Message> incoming;
  for (std::uint32_t round = 1; round < ranks; ++round) {
    const std::uint32_t from = (rank + ranks - round) % ranks;
    incoming.push_back(group.recv(from, step, parts.buffers[from]));
  }
  co_await collectives::agree_on_lengths(group, sent, expected);

  collectives::keep(parts.sent[rank], parts.buffers[rank]);
  std::deque<Message> outgoing;
  for (std::uint32_t round = 1; round < ranks; ++round) {
    if (outgoing.size() == kWindow) {
      Message& oldest = outgoing.front();
      co_await oldest;
      outgoing.pop_front();
    }
    const std::uint32_t to = (rank + round) % ranks;
    outgoing.push_back(group.send(to, step, parts.sent[to]));
  }
  for (std::uint32_t round = 1; round < ranks; ++round) {
    const std::uint32_t from = (rank + ranks - round) % ranks;
    Message& message = incoming[round - 1];
    const std::size_t received = co_await message;
    collectives::require_length(received, parts.buffers[from].size(), group, from);
  }
  while (!outgoing.empty()) {
    Message& oldest = outgoing.front();
    co_await oldest;
    outgoing.pop_front();
  }
}

void check_parts(const Parts& parts, const GroupShape& group) {
  if (parts.sent.size() != group.size || parts.buffers.size() != group.size) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("all_to_all needs one part and one buffer per rank: {} expected, {} "
                            "parts and {} buffers given",
                            group.size, parts.sent.size(), parts.buffers.size()));
  }
  if (parts.sent[group.rank].size() != parts.buffers[group.rank].size()) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("all_to_all of rank {} to itself: {} bytes sent, {} expected", group.rank,
                    parts.sent[group.rank].size(), parts.buffers[group.rank].size()));
  }
  collectives::check_kept(parts.sent[group.rank], parts.buffers[group.rank], "all_to_all", group);
  collectives::check_each_moved(parts.sent, "all_to_all", group);
  collectives::check_each_moved(parts.buffers, "all_to_all", group);
}

}  // namespace

Collective all_to_all(const ConstBuffers& parts, const Buffers& buffers) {
  const DataType sent = collectives::type_of_all("all_to_all", parts);
  const DataType dtype = collectives::type_of_all(
      "all_to_all", buffers, parts.empty() ? std::nullopt : std::optional(sent));
  Collective collective;
  collective.name = "all_to_all";
  for (const ConstBuffer& part : parts) {
    collective.bytes += part.bytes().size();
  }
  collective.agreement = Agreement("all_to_all").type("dtype", dtype);
  const auto held = std::make_shared<const Parts>(
      Parts{collectives::bytes_of_all(parts), collectives::bytes_of_all(buffers)});
  collective.check = [held](const GroupShape& group) { check_parts(*held, group); };
  collective.body = [held](GroupView& group) { return exchange(group, *held); };
  return collective;
}

}  // namespace gtopk
