#include "collectives/all_gather.hpp"

#include "collectives/agreement.hpp"
#include "collectives/ring.hpp"
#include "collectives/tree.hpp"

namespace gtopk::collectives {

using engine::GroupView;
using engine::Message;
using engine::Task;

Task<void> all_gather(GroupView& group, const Signature& signature,
                      std::span<const std::span<std::byte>> rooms) {
  const engine::CallText text(group, [&signature] { return describe(signature); });
  co_await agree(group, signature);
  const std::uint32_t ranks = group.size();
  const std::uint32_t next = (group.rank() + 1) % ranks;
  const std::uint32_t previous = (group.rank() + ranks - 1) % ranks;
  const std::uint32_t first_step = Tree(ranks).end_step();
  for (std::uint32_t step = 0; step + 1 < ranks; ++step) {
    const std::span<std::byte> passed_on = rooms[(group.rank() + ranks - step) % ranks];
    const std::span<std::byte> arriving = rooms[(previous + ranks - step) % ranks];
    Message incoming = group.recv(previous, first_step + step, arriving);
    Message outgoing = group.send(next, first_step + step, passed_on);
    const std::size_t received = co_await incoming;
    require_length(received, arriving.size(), group, previous);
    co_await outgoing;
  }
}

}  // namespace gtopk::collectives
