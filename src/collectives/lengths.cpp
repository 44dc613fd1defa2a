#include "src/collectives/lengths.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <deque>

#include "gtopk/error.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/collectives/tree.hpp"
#include "src/numbers/mix.hpp"

namespace gtopk::collectives {
namespace {

using engine::GroupView;
using engine::Message;
using engine::Task;

/// The hash of a pair of ranks, in this direction.
std::uint64_t hash(std::uint32_t from, std::uint32_t to) {
  return drawn(std::uint64_t{from} << 32U | to, 1);
}

/// Tells every rank what is sent to it. A rank that expects something else throws; the others wait
/// until they are notified.
Task<void> find_difference(GroupView& group, std::span<const std::uint64_t> sent,
                           std::span<const std::uint64_t> expected, std::uint32_t first_step) {
  constexpr std::size_t kNumber = sizeof(std::uint64_t);
  const std::span<std::byte> mine = group.buffer(sent.size_bytes());
  const std::span<std::byte> theirs = group.buffer(expected.size_bytes());
  std::memcpy(mine.data(), sent.data(), sent.size_bytes());
  std::deque<Message> outgoing;
  for (std::uint32_t to = 0; to < group.size(); ++to) {
    if (to == group.rank()) {
      continue;
    }
    outgoing.push_back(group.send(to, first_step, mine.subspan(to * kNumber, kNumber)));
  }
  for (std::uint32_t from = 0; from < group.size(); ++from) {
    if (from == group.rank()) {
      continue;
    }
    const std::span<std::byte> buffer = theirs.subspan(from * kNumber, kNumber);
    Message incoming = group.recv(from, first_step, buffer);
    const std::size_t received = co_await incoming;
    require_length(received, kNumber, group, from);
    std::uint64_t number = 0;
    std::memcpy(&number, buffer.data(), kNumber);
    if (number == expected[from]) {
      continue;
    }
    throw Error(
        ErrorKind::kMismatch,
        fmt::format("ranks differ: {} sends {} bytes to {}, which expects {} from it",
                    group.member(from), number, group.member(group.rank()), expected[from]));
  }
  co_await reduce_over_ranks(group, nullptr, 0, DataType::kUint8, ReduceOp::kSum, first_step + 1);
}

}  // namespace

Task<void> agree_on_lengths(GroupView& group, std::span<const std::uint64_t> sent,
                            std::span<const std::uint64_t> expected) {
  std::uint64_t balance = 0;  // modulo 2^64, like int64 addition
  for (std::uint32_t other = 0; other < group.size(); ++other) {
    balance += sent[other] * hash(group.rank(), other);
    balance -= expected[other] * hash(other, group.rank());
  }
  co_await reduce_over_ranks(group, &balance, 1, DataType::kInt64, ReduceOp::kSum);
  if (balance != 0) {
    co_await find_difference(group, sent, expected, Tree(group.size()).end_step());
  }
}

}  // namespace gtopk::collectives
