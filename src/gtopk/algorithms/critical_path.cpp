#include "src/gtopk/algorithms/critical_path.hpp"

#include <algorithm>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/gtopk/algorithms/departure.hpp"
#include "src/gtopk/wire/coded.hpp"

namespace gtopk::sparse {

using collectives::kHeaderBytes;

std::uint64_t CriticalPath::ranks_below(std::uint32_t round) const {
  const std::uint64_t leaves = 1ULL << round;
  return leaves + std::min<std::uint64_t>(leaves, tree_.ranks() - tree_.leaves());
}

std::uint64_t CriticalPath::united(std::uint64_t ranks) const {
  return shape_.k > shape_.d / ranks ? shape_.d : shape_.k * ranks;
}

void CriticalPath::sweep() {
  work_.selected += shape_.d;
  work_.committed += shape_.d;
}

void CriticalPath::list(std::uint64_t entries, Holds holds) {
  const Codec& own = *shape_.codec;
  const bool as_it_is = own.rounds() && (holds == Holds::kSums ||
                                         (holds == Holds::kPart && !own.parts_are_rounded()));
  const Codec& codec = as_it_is ? kLossless.codec : own;
  const double bytes = codec.expected_bytes(shape_.type, entries, shape_.d);
  ++work_.messages;
  work_.bytes += bytes;
  if (bytes > static_cast<double>(kAcknowledgedBytes)) ++work_.messages;
  if (codec.codes()) work_.coded += 2 * entries;  // on either side
}

void CriticalPath::message(std::uint64_t bytes) {
  ++work_.messages;
  work_.bytes += static_cast<double>(kHeaderBytes + bytes);
}

void CriticalPath::reduce(std::uint64_t values) {
  const std::uint64_t bytes = values * shape_.type.value_bytes();
  const bool ring = bytes > collectives::kRecursiveDoublingBytes;
  const std::uint32_t nodes = tree_.rounds() + (folds() ? 1 : 0);
  for (std::uint32_t i = 0; i < nodes + (folds() ? 1U : 0U); ++i) message(ring ? 0 : bytes);
  if (!ring) {
    add(nodes * values);
    return;
  }
  const std::uint32_t ranks = tree_.ranks();
  if (ranks == 1) return;
  // Pieces of a chunk follow each other without waiting: alpha is paid once for each chunk.
  const auto chunk = [&](std::uint32_t index) {
    return collectives::chunk_begin(values, ranks, index + 1) -
           collectives::chunk_begin(values, ranks, index);
  };
  work_.messages += 2ULL * (ranks - 1);
  work_.bytes +=
      static_cast<double>((2 * values - chunk(0) - chunk(1)) * shape_.type.value_bytes());
  add(values - chunk(0));
}

}  // namespace gtopk::sparse
