#include "src/gtopk/algorithms/leaf_sum.hpp"

#include "src/collectives/header.hpp"

namespace gtopk::sparse {

using collectives::Header;
using collectives::kHeaderBytes;
using engine::Message;
using engine::Task;

LeafSum::LeafSum(engine::GroupView& group, const collectives::Tree& tree, std::size_t words)
    : group_(group),
      tree_(tree),
      size_(words),
      mine_(group.buffer(kHeaderBytes + words * sizeof(std::uint64_t))
                .first(kHeaderBytes + words * sizeof(std::uint64_t))),
      theirs_(group.buffer(mine_.size()).first(mine_.size())) {
  collectives::write_header(mine_, group_, {.count = words});
}

std::span<std::uint64_t> LeafSum::words_of(std::span<std::byte> message) const {
  return {reinterpret_cast<std::uint64_t*>(message.data() + kHeaderBytes), size_};
}

Task<std::span<const std::uint64_t>> LeafSum::swap(std::uint32_t round, std::uint32_t step) {
  const std::uint32_t partner = tree_.partner(group_.rank(), round);
  Message incoming = group_.recv(partner, step, theirs_);
  Message outgoing = group_.send(partner, step, mine_);
  const std::size_t received = co_await incoming;
  Task<Header> reading = collectives::read_header(theirs_.first(received), group_, partner);
  const Header header = co_await reading;
  collectives::require_payload(header, {.count = size_}, group_, partner);
  collectives::require_length(received, theirs_.size(), group_, partner);
  co_await outgoing;  // before its memory changes
  co_return words_of(theirs_);
}

Task<void> LeafSum::sum(std::uint32_t first_step) {
  for (std::uint32_t round = 0; round < tree_.rounds(); ++round) {
    Task<std::span<const std::uint64_t>> swapping = swap(round, first_step + round);
    const std::span<const std::uint64_t> theirs = co_await swapping;
    for (std::size_t i = 0; i < size_; ++i) {
      words()[i] += theirs[i];
    }
  }
}

Task<void> LeafSum::sum(std::uint32_t first_step, std::span<std::uint64_t> below) {
  for (std::uint64_t& word : below) {
    word = 0;
  }
  for (std::uint32_t round = tree_.rounds(); round-- > 0; ++first_step) {
    Task<std::span<const std::uint64_t>> swapping = swap(round, first_step);
    const std::span<const std::uint64_t> theirs = co_await swapping;
    for (std::size_t i = 0; i < size_; ++i) {
      if (!tree_.on_left(group_.rank(), round)) {
        below[i] += theirs[i];
      }
      words()[i] += theirs[i];
    }
  }
}

}  // namespace gtopk::sparse
