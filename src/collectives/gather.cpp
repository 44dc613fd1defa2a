// Collectives: sends every rank's bytes to one rank, or one rank's parts to all. All ranks agree on
// the lengths, then each message goes straight to its receiver. A tree would take log P messages on
// the root's path instead of P-1, but pass most bytes through several ranks. The bottleneck is the
// root's link, which must carry all of them once, and its messages are in flight at once.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
using Lengths = std::vector<std::uint64_t>;

Task<void> gather_to(GroupView& group, std::uint32_t root, ConstBytes data,
                     std::span<const Bytes> buffers) {
  Lengths sent(group.size());
  Lengths expected(group.size());
  sent[root] = data.size();
  for (std::uint32_t from = 0; from < buffers.size(); ++from) {
    expected[from] = buffers[from].size();
  }
  const std::uint32_t step = collectives::step_after_lengths(group.size());
  std::vector<Message> incoming;
  for (std::uint32_t from = 0; from < buffers.size(); ++from) {
    if (from != root) {
      incoming.push_back(group.recv(from, step, buffers[from]));
    }
  }
  co_await collectives::agree_on_lengths(group, sent, expected);

  if (group.rank() != root) {
    Message outgoing = group.send(root, step, data);
    co_await outgoing;
    co_return;
  }
  collectives::keep(data, buffers[root]);
  for (std::uint32_t from = 0; from < group.size(); ++from) {
    if (from == root) {
      continue;
    }
    Message& message = incoming[from < root ? from : from - 1];
    const std::size_t received = co_await message;
    collectives::require_length(received, buffers[from].size(), group, from);
  }
}

Task<void> scatter_from(GroupView& group, std::uint32_t root, std::span<const ConstBytes> parts,
                        Bytes output) {
  Lengths sent(group.size());
  Lengths expected(group.size());
  for (std::uint32_t to = 0; to < parts.size(); ++to) {
    sent[to] = parts[to].size();
  }
  expected[root] = output.size();
  const std::uint32_t step = collectives::step_after_lengths(group.size());
  std::optional<Message> incoming;
  if (group.rank() != root) {
    incoming.emplace(group.recv(root, step, output));
  }
  co_await collectives::agree_on_lengths(group, sent, expected);

  if (incoming) {
    Message& message = *incoming;
    const std::size_t received = co_await message;
    collectives::require_length(received, output.size(), group, root);
    co_return;
  }
  std::vector<Message> outgoing;
  for (std::uint32_t to = 0; to < group.size(); ++to) {
    if (to != root) {
      outgoing.push_back(group.send(to, step, parts[to]));
    }
  }
  collectives::keep(parts[root], output);
  for (Message& message : outgoing) {
    co_await message;
  }
}

/// Checks sizes. `own` is the number of bytes that this rank contributes or receives; `by_rank` has
/// the numbers given at the root.
void check_list(std::string_view name, std::string_view one, std::uint32_t root, std::size_t own,
                const Lengths& by_rank, const GroupShape& group) {
  group.check_rank(root, "the root");
  const std::size_t wanted = group.rank == root ? group.size : 0;
  if (by_rank.size() != wanted) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} needs one {} per rank on the root, rank {}, and none elsewhere: {} "
                            "expected on rank {}, {} given",
                            name, one, root, wanted, group.rank, by_rank.size()));
  }
  if (group.rank == root && by_rank[root] != own) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} on the root, rank {}: expected {} bytes in its own {}, got {}",
                            name, root, own, one, by_rank[root]));
  }
}

Lengths lengths(const auto& spans) {
  Lengths sizes;
  for (const auto& span : spans) {
    sizes.push_back(span.size());
  }
  return sizes;
}

}  // namespace

Collective gather(ConstBuffer data, const Buffers& buffers, std::uint32_t root) {
  const DataType dtype = collectives::type_of_all("gather", buffers, data.dtype);
  const ConstBytes sent = data.bytes();
  Collective collective;
  collective.name = "gather";
  collective.bytes = sent.size();
  collective.agreement = Agreement("gather").type("dtype", dtype).number("root", root);
  const auto held = std::make_shared<const std::vector<Bytes>>(collectives::bytes_of_all(buffers));
  collective.check = [=](const GroupShape& group) {
    check_list("gather", "buffer", root, sent.size(), lengths(*held), group);
    if (group.rank == root) {
      collectives::check_kept(sent, (*held)[root], "gather", group);
      collectives::check_each_moved(*held, "gather", group);
    } else {
      group.check_moved(sent.memory(), "gather", root);
    }
  };
  collective.body = [=](GroupView& group) { return gather_to(group, root, sent, *held); };
  return collective;
}

Collective scatter(const ConstBuffers& parts, Buffer output, std::uint32_t root) {
  const DataType dtype = collectives::type_of_all("scatter", parts, output.dtype);
  const Bytes received = output.bytes();
  Collective collective;
  collective.name = "scatter";
  collective.bytes = received.size();
  collective.agreement = Agreement("scatter").type("dtype", dtype).number("root", root);
  const auto held =
      std::make_shared<const std::vector<ConstBytes>>(collectives::bytes_of_all(parts));
  collective.check = [=](const GroupShape& group) {
    check_list("scatter", "part", root, received.size(), lengths(*held), group);
    if (group.rank == root) {
      collectives::check_kept((*held)[root], received, "scatter", group);
      collectives::check_each_moved(*held, "scatter", group);
    } else {
      group.check_moved(received.memory(), "scatter", root);
    }
  };
  collective.body = [=](GroupView& group) { return scatter_from(group, root, *held, received); };
  return collective;
}

}  // namespace gtopk
