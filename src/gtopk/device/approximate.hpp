// Sparse, device: the selections `gaussian` and `sampled` (select/gaussian.cpp, sampled.cpp): they
// start from a threshold found from moments or a sample, and correct it by counting the elements
// that reach it. Then either the cut is known, or the first entries are found as in an exact
// selection, from the same candidates (select.hpp).
//
// All thresholds that may be tried are known once the first is known, so one launch counts the
// elements that reach each, and the block that ends last makes as many corrections as needed.
#pragma once

#include <cstdint>

#include "gtopk/selection_rule.hpp"
#include "src/gtopk/device/arena.hpp"
#include "src/gtopk/device/block.hpp"
#include "src/gtopk/device/ending.hpp"
#include "src/gtopk/device/find_key.hpp"
#include "src/gtopk/device/pieces.hpp"
#include "src/gtopk/device/refine.hpp"
#include "src/gtopk/device/sample.hpp"
#include "src/gtopk/device/select.hpp"
#include "src/gtopk/select/correction.hpp"
#include "src/gtopk/select/moments.hpp"

namespace gtopk::sparse::device {

/// The state of a search for a threshold, in the device's memory.
struct Search {
  double threshold = 0;
  /// Whether the number of elements that reach the threshold is within bounds.
  std::uint32_t within = 0;
};

/// The keys of the thresholds to which corrections may lead, in ascending order: one for each
/// sequence of up to `times` corrections, and one that no element reaches. A correction depends
/// only on how many elements reach the last threshold, so all thresholds that may be counted are
/// known beforehand.
template <class Value>
struct Thresholds {
  Key<Value>* keys = nullptr;
  unsigned count = 0;

  [[nodiscard]] static constexpr unsigned count_of(const Correction& correction) {
    return 2U << static_cast<unsigned>(correction.times);
  }
  /// Returns how many of the keys are less than `key`.
  [[nodiscard]] GTOPK_HOST_DEVICE unsigned below(Key<Value> key) const {
    unsigned less = 0;
    for (unsigned step = count / 2; step != 0; step /= 2) {
      less += keys[less + step - 1] < key ? step : 0;
    }
    return less;
  }
};

/// Finds all thresholds once the first is known. Runs as one block.
template <class Value>
struct ListThresholds {
  struct Shared {
    Key<Value> keys[kBins];
  };

  const Search* search;
  Correction correction;
  Thresholds<Value> list;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.each([&](unsigned thread) {
      // Below its highest bit, the bits of `way` encode a sequence of corrections: a set bit is a
      // correction upwards.
      for (unsigned way = thread; way < list.count; way += kThreads) {
        double threshold = search->threshold;
        for (unsigned bit = list.count / 4; bit != 0; bit /= 2) {
          if (way >= 2 * bit) {
            threshold *= (way & bit) != 0 ? correction.up : correction.down;
          }
        }
        shared.keys[way] = way == 0 ? ~Key<Value>{0} : key_reaching<Value>(threshold);
      }
    });
    sort(block, shared.keys, list.count);
    block.each([&](unsigned thread) {
      for (unsigned i = thread; i < list.count; i += kThreads) {
        list.keys[i] = shared.keys[i];
      }
    });
  }
};

/// Returns a key's bin by its first digit, and a second bin, behind the first ones, by the
/// thresholds that it reaches.
template <class Value>
struct ByThresholds {
  static constexpr unsigned kCount = 2 * kBins;

  Thresholds<Value> list;

  template <class Use>
  GTOPK_HOST_DEVICE void operator()(Key<Value> key, Key<Value> known, Use use) const {
    ByDigit<Value>{0}(key, known, use);
    const unsigned reached = list.below(key + 1);
    if (reached != 0) {
      use(kBins + reached);
    }
  }
};

/// Corrects the threshold by the counts, and determines how many entries are kept: those that reach
/// it, or the first `most` of them. It keeps the first k of all if none reaches it, because a rank
/// that found nothing might never find anything again, or, if k is the alternative, if the number
/// that reaches it is out of bounds. Runs as one block.
template <class Value>
struct CorrectThreshold {
  struct Shared {
    Key<Value> keys[kBins];
    std::uint64_t sums[kThreads];
    std::uint64_t spare[kThreads];
  };

  Search* search;
  Thresholds<Value> list;
  std::uint64_t* reaching;  // how many elements reach each number of thresholds
  Correction correction;
  std::uint64_t k;
  std::uint64_t most;
  bool else_k;
  Cutoff<Value>* cutoff;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const Cutoff<Value> before = block.read(*cutoff);
    if (before.searching == 0 || before.finite == 0) {
      return;
    }
    block.each([&](unsigned thread) {
      for (unsigned i = thread; i < list.count; i += kThreads) {
        shared.keys[i] = list.keys[i];
      }
    });
    const std::uint64_t all = sum_up(block, shared, reaching, list.count);
    block.each([&](unsigned thread) {
      if (thread == 0) {
        correct(Thresholds<Value>{shared.keys, list.count}, all, before);
      }
    });
  }

 private:
  // The candidates are all elements that reach some key, and there are more than `most`. If only
  // candidates were counted, the counts for thresholds below that key are too low, but still large
  // enough not to matter.
  GTOPK_HOST_DEVICE void correct(const Thresholds<Value>& known, std::uint64_t all,
                                 Cutoff<Value> cut) const {
    Search now = *search;
    std::uint64_t count = 0;
    for (int left = correction.times;; --left) {
      cut.key = key_reaching<Value>(now.threshold);
      count = all - reaching[known.below(cut.key) + 1];
      const bool few = correction.too_few(count, k);
      now.within = !few && !correction.too_many(count, k) ? 1 : 0;
      if (now.within != 0 || left == 0) {
        break;
      }
      now.threshold *= few ? correction.down : correction.up;
    }
    *search = now;
    const bool takes_k = else_k ? now.within == 0 : count == 0;
    if (takes_k || count > most) {
      cut.key = 0;
      cut.left = takes_k ? k : most;
    } else {
      --cut.key;  // so that larger keys are kept
      cut.left = 0;
      cut.searching = 0;
    }
    *cutoff = cut;
  }
};

/// Computes the sum and the sum of squares of each chunk, in the order of select/moments.hpp. A
/// thread computes one partial sum; a block handles 16 chunks at a time.
template <class T>
struct SumChunks {
  static constexpr unsigned kPartials = kMomentsPartials;
  static constexpr unsigned kTogether = kThreads / kPartials;
  struct Shared {
    double sums[kThreads];
    double squares[kThreads];
  };

  Pieces<T> acc;
  std::uint64_t d;
  double* sums;     // sum of each chunk
  double* squares;  // sum of squares of each chunk

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    const std::uint64_t chunks = chunks_of(d);
    const std::uint64_t begin = acc.pieces[0].begin;
    for (std::uint64_t first = block.number() * kTogether; first < chunks;
         first += block.count() * kTogether) {
      block.each([&](unsigned thread) {
        const std::uint64_t chunk = first + thread / kPartials;
        double sum = 0;
        double square = 0;
        if (chunk < chunks) {
          const std::uint64_t at = chunk * kMomentsChunk;
          const Run<T> run(acc, begin + at,
                           static_cast<unsigned>(least<std::uint64_t>(kMomentsChunk, d - at)));
          run.with_elements([&](const auto& elements) {
            for (unsigned i = thread % kPartials; i < run.size(); i += kPartials) {
              const double value = elements.acc(i);
              sum += value;
              square += value * value;
            }
          });
        }
        shared.sums[thread] = sum;
        shared.squares[thread] = square;
      });
      for (unsigned width = kPartials / 2; width > 0; width /= 2) {
        block.each([&](unsigned thread) {
          if (thread % kPartials < width) {
            shared.sums[thread] += shared.sums[thread + width];
            shared.squares[thread] += shared.squares[thread + width];
          }
        });
      }
      block.each([&](unsigned thread) {
        const std::uint64_t chunk = first + thread / kPartials;
        if (thread % kPartials == 0 && chunk < chunks) {
          sums[chunk] = shared.sums[thread];
          squares[chunk] = shared.squares[thread];
        }
      });
    }
  }

  [[nodiscard]] GTOPK_HOST_DEVICE static std::uint64_t chunks_of(std::uint64_t d) {
    return (d + kMomentsChunk - 1) / kMomentsChunk;
  }
};

/// Computes the first threshold of `gaussian` from the sums of the chunks, added in the order of
/// select/moments.hpp with a thread for each partial sum. Runs as one block.
struct BeginFromMoments {
  static_assert(kMomentsGroups == kThreads);
  struct Shared {
    double sums[kThreads];
    double squares[kThreads];
  };

  const double* sums;
  const double* squares;
  std::uint64_t chunks;
  std::uint64_t d;
  double quantile;
  Search* search;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    block.each([&](unsigned thread) {
      double sum = 0;
      double square = 0;
      for (std::uint64_t chunk = thread; chunk < chunks; chunk += kThreads) {
        sum += sums[chunk];
        square += squares[chunk];
      }
      shared.sums[thread] = sum;
      shared.squares[thread] = square;
    });
    for (unsigned width = kThreads / 2; width > 0; width /= 2) {
      block.each([&](unsigned thread) {
        if (thread < width) {
          shared.sums[thread] += shared.sums[thread + width];
          shared.squares[thread] += shared.squares[thread + width];
        }
      });
    }
    block.each([&](unsigned thread) {
      if (thread == 0) {
        *search = {normal_threshold(shared.sums[0], shared.squares[0], d, quantile)};
      }
    });
  }
};

/// Begins with the key found in a sample. Runs as one block.
template <class Value>
struct BeginFromSample {
  struct Shared {};

  const Cutoff<Value>* cutoff;
  Search* search;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {
        *search = {magnitude_of<Value>(cutoff->key)};
      }
    });
  }
};

/// The workspace of such a selection, in the device's memory.
template <class Value>
struct SearchWorkspace {
  SelectionWorkspace<Value> selection;
  KeyWorkspace<Value> sample;
  Search* search = nullptr;
  Key<Value>* thresholds = nullptr;
  double* sums = nullptr;
  double* squares = nullptr;

  /// `candidates` is the capacity for candidates.
  static SearchWorkspace in(Arena& arena, std::uint64_t tiles, std::uint64_t d,
                            const SelectionRule& rule, std::uint64_t candidates) {
    SearchWorkspace workspace;
    const bool sums = rule.kind == SelectionRule::Kind::kNormal;
    const std::uint64_t chunks = sums ? SumChunks<Value>::chunks_of(d) : 0;
    workspace.selection = SelectionWorkspace<Value>::in(arena, tiles, candidates);
    workspace.sample = KeyWorkspace<Value>::in(arena);
    workspace.search = arena.take<Search>(1);
    workspace.thresholds = arena.take<Key<Value>>(kBins);
    workspace.sums = arena.take<double>(chunks);
    workspace.squares = arena.take<double>(chunks);
    return workspace;
  }

  [[nodiscard]] Thresholds<Value> list(const Correction& correction) const {
    return {thresholds, Thresholds<Value>::count_of(correction)};
  }
};
static_assert(Thresholds<float>::count_of(kSampledCorrection) <= kBins);

/// Launches the kernels that count the elements that reach the thresholds, correct the first
/// threshold, and write the entries. `then`, a kernel of one block, runs once the cut is known.
template <class T, class Executor, class Then = Nothing>
void select_reaching(Executor& executor, const Pieces<T>& acc, const SelectionRule& rule,
                     const Correction& correction,
                     const SearchWorkspace<Accumulation<T>>& workspace,
                     EntriesOut<Accumulation<T>, Index> kept, Report* report,
                     const Then& then = {}) {
  using Value = Accumulation<T>;
  const KeyWorkspace<Value>& key = workspace.selection.refine.key;
  const Thresholds<Value> list = workspace.list(correction);
  const bool else_k = rule.kind == SelectionRule::Kind::kThreshold;
  select_found(executor, acc, workspace.selection, kept, report, ByThresholds<Value>{list},
               CorrectThreshold<Value>{workspace.search, list, key.bins + kBins, correction, rule.k,
                                       rule.most, else_k, key.cutoff},
               then);
}

/// Launches a whole selection of kind kNormal or kSample. `kept` has capacity for rule.most
/// entries.
template <class T, class Executor>
void select_approximately(Executor& executor, const Pieces<T>& acc, std::uint64_t d,
                          const SelectionRule& rule,
                          const SearchWorkspace<Accumulation<T>>& workspace,
                          EntriesOut<Accumulation<T>, Index> kept, Report* report) {
  using Value = Accumulation<T>;
  const bool normal = rule.kind == SelectionRule::Kind::kNormal;
  const Correction correction = normal ? kGaussianCorrection : kSampledCorrection;
  const SelectionWorkspace<Value>& selection = workspace.selection;
  const Guess guess = guess_of(d, rule.most, selection);
  const BeginSearch<Value> begin{selection.refine.key, search_of<Value>(guess.rank)};
  const ListThresholds<Value> list{workspace.search, correction, workspace.list(correction)};
  const std::uint64_t enough = rule.most + 1;
  if (normal) {
    const std::uint64_t chunks = SumChunks<T>::chunks_of(d);
    const Step sums{chunks, SumChunks<T>{acc, d, workspace.sums, workspace.squares},
                    InTurn{BeginFromMoments{workspace.sums, workspace.squares, chunks, d,
                                            rule.quantile, workspace.search},
                           list}};
    executor.launch(1, begin);
    find_candidates(executor, acc, guess, enough, selection, sums);
  } else {
    const KeyWorkspace<Value>& key = workspace.sample;
    const SampleSource<T> sample{acc, rule.stride, (d + rule.stride - 1) / rule.stride};
    const InTurn then{BeginFromSample<Value>{key.cutoff, workspace.search}, list};
    const auto first = find_digit(sample, key, 0);
    const auto second = find_digit(sample, key, 1);
    executor.launch(1, InTurn{begin, BeginSearch<Value>{key, search_of<Value>(rule.rank)}});
    if constexpr (Digits<Value>::kLevels == 3) {
      find_candidates(executor, acc, guess, enough, selection, first, second,
                      find_digit(sample, key, 2, then));
    } else {
      find_candidates(executor, acc, guess, enough, selection, first, second,
                      find_digit(sample, key, 2));
      find_key(executor, sample, key, then, 3);
    }
  }
  select_reaching(executor, acc, rule, correction, workspace, kept, report);
}

}  // namespace gtopk::sparse::device
