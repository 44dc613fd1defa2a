// Sparse, device: several kernels in one launch. Most steps are a sweep by many blocks, after which
// one block adds up their counts. The block that ends last does this: it sees what all blocks have
// written, so no further launch is needed.
#pragma once

#include <cstdint>

#include "src/gtopk/device/block.hpp"

namespace gtopk::sparse::device {

/// The shared memory of two kernels that run one after the other.
template <class First, class Second>
union SharedInTurn {
  typename First::Shared first;
  typename Second::Shared second;
};

/// Runs `first` and then `second`, in one block, or in many if `second` does not depend on what
/// other blocks do in `first`.
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

/// Runs `wide` in all blocks, then `last`, a kernel of one block, in the block that ends last.
template <class Wide, class Last>
struct WithLast {
  struct Shared {
    SharedInTurn<Wide, Last> parts;
    std::uint32_t is_last;
  };

  Wide wide;
  Last last;
  std::uint32_t* ended;  ///< how many blocks have ended; 0 before and afterwards

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    wide(block, shared.parts.first);
    if (block.comes_last(*ended, shared.is_last)) {
      Block alone = block.alone();
      last(alone, shared.parts.second);
    }
  }
};

/// A kernel of one block that does nothing.
struct Nothing {
  struct Shared {};

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& /*block*/, Shared& /*shared*/) const {}
};

/// The number of blocks for a launch over this many parts: at most the number of parts, because
/// each block costs time.
template <class Executor>
[[nodiscard]] std::uint64_t blocks_for(const Executor& executor, std::uint64_t parts) {
  return least<std::uint64_t>(executor.wide(), parts == 0 ? 1 : parts);
}

/// The work of one launch: `wide`, which goes over this many parts, and `last` after it.
template <class Wide, class Last>
struct Step {
  std::uint64_t parts;
  Wide wide;
  Last last;
};

/// Combines two independent steps in one launch.
template <class Wide, class Last, class OtherWide, class OtherLast>
[[nodiscard]] auto both(const Step<Wide, Last>& one, const Step<OtherWide, OtherLast>& other) {
  return Step{one.parts < other.parts ? other.parts : one.parts, InTurn{one.wide, other.wide},
              InTurn{one.last, other.last}};
}

template <class Wide, class Last>
[[nodiscard]] Step<Wide, Last> both(const Step<Wide, Last>& one, Nothing /*other*/) {
  return one;
}

template <class Executor, class Wide, class Last>
void launch(Executor& executor, const Step<Wide, Last>& step, std::uint32_t* ended) {
  executor.launch(blocks_for(executor, step.parts), WithLast{step.wide, step.last, ended});
}

template <class Executor>
void launch(Executor& /*executor*/, Nothing /*step*/, std::uint32_t* /*ended*/) {}

}  // namespace gtopk::sparse::device
