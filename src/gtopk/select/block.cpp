// Sparse, select: the row of `block`: every block of b elements sends its own largest entries, as
// in SparseLoCo and DeMo, so no layer is left out, and indices within a block are short.
#include <algorithm>
#include <array>
#include <limits>

#include "src/gtopk/select/candidates.hpp"
#include "src/gtopk/select/selector.hpp"
#include "src/gtopk/value/blocks.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

/// The threshold to try first in the next block, chosen so that most blocks are swept once and
/// yield few surplus candidates. A block with too few is swept again, from the cache. It affects
/// only time.
template <class Value>
class Guess {
 public:
  [[nodiscard]] Key<Value> threshold() const { return threshold_; }
  /// The thresholds to try next in the same block.
  [[nodiscard]] std::array<Key<Value>, 3> lower() const {
    return {below(threshold_, kOctave / 4), below(threshold_, kOctave), 1};
  }

  /// Records that the first sweep found `count` entries where k were wanted. Any threshold finds a
  /// non-finite value.
  void found(std::size_t count, std::size_t k) {
    if (count > 4 * k) {
      threshold_ = std::min(threshold_ + kOctave / 16, MagnitudeKey<Value>::kInfinity);
    }
  }
  /// Records that the first sweep found too few. `smallest` is the smallest key sent in the end, or
  /// 1 if all were sent.
  void missed(Key<Value> smallest) { threshold_ = below(smallest, kOctave / 8); }

 private:
  /// One step of the exponent, as a distance of keys: half the magnitude.
  static constexpr Key<Value> kOctave = Key<Value>{1} << (std::numeric_limits<Value>::digits - 1);

  static Key<Value> below(Key<Value> key, Key<Value> distance) {
    return key > distance ? key - distance : 1;
  }

  Key<Value> threshold_ = 1;
};

Selection block_select(const SelectionInput& input, const List& out, SelectScratch& scratch) {
  const KeepDenormals guard;
  return visit_selection(input, [&]<class T, class Index>() -> Selection {
    using Value = Accumulation<T>;
    if (input.d == 0) {
      return {};
    }
    const auto d = static_cast<std::size_t>(input.d);
    const Blocks blocks(input.d, input.density, input.block);
    const auto block = static_cast<std::size_t>(blocks.length());
    Candidates<T, Index> candidates(Segments<T>(input.tensor),
                                    static_cast<const Value*>(input.residual), block,
                                    static_cast<std::size_t>(blocks.keeps(0)), scratch);
    auto output = out.output<Value, Index>();
    Guess<Value> guess;
    Selection selection;
    for (std::size_t begin = 0, end = 0; begin < d; begin = end) {
      end = begin + std::min(block, d - begin);
      const auto k = static_cast<std::size_t>(blocks.keeps(begin));
      candidates.start(guess.threshold());
      if (!candidates.sweep(begin, end)) {
        return {.finite = false};
      }
      guess.found(candidates.size(), k);
      const bool missed = candidates.size() < k || candidates.first_threshold() == 1;
      for (const Key<Value> threshold : guess.lower()) {
        if (candidates.size() >= k || candidates.first_threshold() == 1) {
          break;
        }
        candidates.start(threshold);
        if (!candidates.sweep(begin, end)) {
          return {.finite = false};
        }
      }
      if (candidates.size() > k) {
        (void)candidates.keep_first(k);
      }
      if (missed) {
        guess.missed(candidates.size() < k ? 1 : candidates.smallest());
      }
      const std::size_t count = candidates.write(output);
      output.indices += count;
      output.values += count;
      selection.count += count;
    }
    return selection;
  });
}

/// On a device, a thread block works on each block. Shorter blocks would need more memory than the
/// vector, and with longer blocks most of the GPU would wait.
constexpr std::uint64_t kShortestOnDevice = 64;
constexpr std::uint64_t kLongestOnDevice = std::uint64_t{1} << 20U;

std::optional<SelectionRule> block_on_device(std::uint64_t d, std::uint64_t k,
                                             const SparseOptions& options) {
  if (options.block >= d) {
    return SelectionRule{.k = k, .most = k};
  }
  if (options.block < kShortestOnDevice || options.block > kLongestOnDevice) {
    return std::nullopt;
  }
  const std::uint64_t last = d % options.block;
  return SelectionRule{.kind = SelectionRule::Kind::kBlocks,
                       .k = selection_size(options.block, options.density),
                       .most = k,
                       .block = options.block,
                       .k_of_last = last == 0 ? 0 : selection_size(last, options.density)};
}

}  // namespace

const SelectorRow kBlock{.name = "block",
                         .description = "the largest of every block of elements, by density",
                         .select = block_select,
                         .per_block = true,
                         .on_device = block_on_device};

}  // namespace gtopk::sparse
