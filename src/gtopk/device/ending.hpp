// Sparse, device room: several kernels in one launch. Most steps are a sweep by many blocks, and
// then a sum of what these have counted, which takes one: it is done by the block that ends last,
// which sees what all have written, and so costs no launch of its own.
#pragma once

#include <cstdint>

#include "src/gtopk/device/block.hpp"

namespace gtopk::sparse::device {

/// Shared memory of two kernels, one after the other.
template <class First, class Second>
union SharedInTurn {
  typename First::Shared first;
  typename Second::Shared second;
};

/// One after the other. Each of one block; or of many, if `second` needs nothing that other blocks
/// do in `first`.
template <class First, class Second>
struct InTurn {
  using Shared = SharedInTurn<First, Second>;

  First first;
  Second second;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    first(block, shared.first);
    second(block, shared.second);
  }
};

/// `wide` by all blocks, and `one`, of one block, by the first of them; in any order.
template <class Wide, class One>
struct WithOne {
  using Shared = SharedInTurn<Wide, One>;

  Wide wide;
  One one;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    wide(block, shared.first);
    if (block.number() == 0) {
      Block alone = block.alone();
      one(alone, shared.second);
    }
  }
};

/// `wide` by all blocks; then `last`, of one block, by the block that comes to its end last.
template <class Wide, class Last>
struct WithLast {
  struct Shared {
    SharedInTurn<Wide, Last> parts;
    std::uint32_t is_last;
  };

  Wide wide;
  Last last;
  std::uint32_t* ended;  ///< blocks that have; 0, and 0 again afterwards

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    wide(block, shared.parts.first);
    if (block.comes_last(*ended, shared.is_last)) {
      Block alone = block.alone();
      last(alone, shared.parts.second);
    }
  }
};

/// In the place of a kernel of one block.
struct Nothing {
  struct Shared {};

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& /*block*/, Shared& /*shared*/) const {}
};

/// Of a launch with so many parts: no more than there are, as each block has its price.
template <class Executor>
[[nodiscard]] std::uint64_t blocks_for(const Executor& executor, std::uint64_t parts) {
  return least<std::uint64_t>(executor.wide(), parts == 0 ? 1 : parts);
}

/// One launch of `wide`, which goes over so many parts, with `last` behind it.
template <class Executor, class Wide, class Last>
void launch_with_last(Executor& executor, std::uint64_t parts, const Wide& wide, const Last& last,
                      std::uint32_t* ended) {
  executor.launch(blocks_for(executor, parts), WithLast<Wide, Last>{wide, last, ended});
}

}  // namespace gtopk::sparse::device
