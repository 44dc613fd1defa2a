// Sparse, device: the selections `gaussian` and `sampled` (select/gaussian.cpp, sampled.cpp):
// they start from a threshold found from moments or a sample, and correct it by counting what
// reaches it. Then either the cut is known, or the first entries are found as in an exact selection
// (refine.hpp).
//
// All possible rounds of correction are launched; once the threshold holds, the rest have nothing
// to do.
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
  /// How many elements reach it.
  std::uint64_t count = 0;
  /// Corrections that may still be made.
  int left = 0;
  std::uint32_t done = 0;
  /// 0: an element was NaN or infinite.
  std::uint32_t finite = 1;
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
  double* sums;     // of each chunk
  double* squares;  // likewise

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
  int times;
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
        Search first;
        first.threshold = normal_threshold(shared.sums[0], shared.squares[0], d, quantile);
        first.left = times;
        *search = first;
      }
    });
  }
};

/// Begins with the key found in a sample. Runs as one block.
template <class Value>
struct BeginFromSample {
  struct Shared {};

  const Cutoff<Value>* cutoff;
  int times;
  Search* search;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      if (thread == 0) {
        Search first;
        first.threshold = magnitude_of<Value>(cutoff->key);
        first.left = times;
        *search = first;
      }
    });
  }
};

/// Counts the elements of acc that reach the threshold.
template <class T>
struct CountReaching {
  using Value = Accumulation<T>;
  struct Shared {
    std::uint32_t count;
  };

  Pieces<T> acc;
  Search* search;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared& shared) const {
    if (search->done != 0) {
      return;
    }
    const Key<Value> reaching = key_reaching<Value>(search->threshold);
    block.each([&](unsigned thread) {
      if (thread == 0) {
        shared.count = 0;
      }
    });
    for (std::uint64_t tile = block.number(); tile < acc.tiles; tile += block.count()) {
      const Stretch<T> here = acc.tile(tile);
      block.each([&](unsigned thread) {
        std::uint32_t count = 0;
        each_loaded(
            thread, here.size, [&](std::size_t i) { return magnitude_key(here.acc(i)); },
            [&](unsigned, Key<Value> key) {
              count += key >= reaching ? 1U : 0U;
              if (!is_finite_key<Value>(key)) {
                clear(search->finite);
              }
            });
        add_by_all(shared.count, count);
      });
    }
    block.each([&](unsigned thread) {
      if (thread == 0 && shared.count != 0) {
        add(search->count, std::uint64_t{shared.count});
      }
    });
  }
};

/// Accepts the count or moves the threshold. Runs as one block.
struct CorrectThreshold {
  struct Shared {};

  Search* search;
  Correction correction;
  std::uint64_t k;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      if (thread != 0 || search->done != 0) {
        return;
      }
      const bool few = correction.too_few(search->count, k);
      const bool within = !few && !correction.too_many(search->count, k);
      if (search->finite == 0 || within || search->left == 0) {
        search->done = 1;
        return;
      }
      search->threshold *= few ? correction.down : correction.up;
      search->count = 0;
      --search->left;
    });
  }
};

/// Keeps what reaches the threshold, or the first `most` of it. If nothing does, keeps the first k
/// of all: a rank that found nothing might never find anything again. Runs as one block.
template <class Value>
struct SettleThreshold {
  struct Shared {};

  const Search* search;
  std::uint64_t k;
  std::uint64_t most;
  Cutoff<Value>* cutoff;

  template <class Block>
  GTOPK_HOST_DEVICE void operator()(Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      if (thread != 0) {
        return;
      }
      Cutoff<Value> cut;
      cut.finite = search->finite;
      if (search->finite != 0) {
        cut.route = Route::kAll;
        if (search->count == 0 || search->count > most) {
          cut.left = search->count == 0 ? k : most;
          cut.searching = 1;
        } else {
          cut.key = key_reaching<Value>(search->threshold) - 1;  // larger keys are kept
        }
      }
      *cutoff = cut;
    });
  }
};

/// The workspace of such a selection, in the device's memory.
template <class Value>
struct SearchWorkspace {
  RefineWorkspace<Value> refine;
  Search* search = nullptr;
  double* sums = nullptr;
  double* squares = nullptr;

  static SearchWorkspace in(Arena& arena, std::uint64_t tiles, std::uint64_t d,
                            const SelectionRule& rule) {
    SearchWorkspace workspace;
    const bool sums = rule.kind == SelectionRule::Kind::kNormal;
    const std::uint64_t chunks = sums ? SumChunks<Value>::chunks_of(d) : 0;
    workspace.refine = RefineWorkspace<Value>::in(arena, tiles);
    workspace.search = arena.take<Search>(1);
    workspace.sums = arena.take<double>(chunks);
    workspace.squares = arena.take<double>(chunks);
    return workspace;
  }
};

/// Launches the kernels that count what reaches the threshold and correct it. `settle`, a kernel of
/// one block, follows the last of them.
template <class T, class Executor, class Settle>
void correct_threshold(Executor& executor, const Pieces<T>& acc, std::uint64_t k,
                       const Correction& correction,
                       const SearchWorkspace<Accumulation<T>>& workspace, const Settle& settle) {
  std::uint32_t* const ended = workspace.refine.key.ended;
  const CountReaching<T> count{acc, workspace.search};
  const CorrectThreshold correct{workspace.search, correction, k};
  for (int round = 0; round < correction.times; ++round) {
    launch_with_last(executor, acc.tiles, count, correct, ended);
  }
  launch_with_last(executor, acc.tiles, count, InTurn{correct, settle}, ended);
}

/// Launches a whole selection of kind kNormal or kSample. `kept` has capacity for rule.most
/// entries.
template <class T, class Executor>
void select_approximately(Executor& executor, const Pieces<T>& acc, std::uint64_t d,
                          const SelectionRule& rule,
                          const SearchWorkspace<Accumulation<T>>& workspace,
                          EntriesOut<Accumulation<T>, Index> kept, Report* report) {
  using Value = Accumulation<T>;
  const KeyWorkspace<Value>& key = workspace.refine.key;
  const bool normal = rule.kind == SelectionRule::Kind::kNormal;
  const Correction correction = normal ? kGaussianCorrection : kSampledCorrection;
  executor.launch(1, BeginSearch<Value>{key, search_of<Value>(rule.rank)});
  if (normal) {
    launch_with_last(executor, SumChunks<T>::chunks_of(d),
                     SumChunks<T>{acc, d, workspace.sums, workspace.squares},
                     BeginFromMoments{workspace.sums, workspace.squares, SumChunks<T>::chunks_of(d),
                                      d, rule.quantile, correction.times, workspace.search},
                     key.ended);
  } else {
    const SampleSource<T> sample{acc, rule.stride, (d + rule.stride - 1) / rule.stride};
    find_key(executor, sample, key,
             BeginFromSample<Value>{key.cutoff, correction.times, workspace.search});
  }
  correct_threshold(executor, acc, rule.k, correction, workspace,
                    SettleThreshold<Value>{workspace.search, rule.k, rule.most, key.cutoff});
  refine(executor, AccSource<T>{acc}, workspace.refine, report, kept, EntriesOut<Value, Index>{});
}

}  // namespace gtopk::sparse::device
