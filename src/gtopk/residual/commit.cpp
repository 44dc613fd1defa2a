// Sparse, residual: commit, stretch by stretch. The few entries that fall into a stretch are
// applied while it is in the cache, so no list needs a second pass over memory of size d.
//
// Stretches run from the end to the front, because selection read tensor and residual from the
// front, and what it read last is still in the last-level cache.
#include "src/gtopk/residual/commit.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "src/gtopk/residual/sweep.hpp"
#include "src/gtopk/value/chosen.hpp"
#include "src/gtopk/value/selection_order.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/keep_denormals.hpp"

namespace gtopk::sparse {
namespace {

constexpr std::size_t kStretch = 4096;

/// Returns the entries of a list with indices of at least a bound, which decreases from call to
/// call.
template <class Value, class Index>
class Tail {
 public:
  Tail() = default;
  explicit Tail(Entries<Value, Index> entries) : entries_(entries), left_(entries.size) {}

  [[nodiscard]] Entries<Value, Index> take_from(std::size_t bound) {
    const std::size_t end = left_;
    while (left_ > 0 && entries_.indices[left_ - 1] >= bound) {
      --left_;
    }
    return {entries_.indices + left_, entries_.values + left_, end - left_};
  }
  [[nodiscard]] bool empty() const { return left_ == 0; }
  /// The largest index left.
  [[nodiscard]] std::size_t last() const { return entries_.indices[left_ - 1]; }

 private:
  Entries<Value, Index> entries_;
  std::size_t left_ = 0;
};

/// The elements of a stretch that are in the result, one bit each. Lists of two ranks interleave at
/// random, so a branch for each entry would be mispredicted.
class Marks {
 public:
  template <class Value, class Index>
  void set(Entries<Value, Index> result) {
    for (std::size_t i = 0; i < result.size; ++i) {
      word_of(result.indices[i]) |= std::uint64_t{1} << result.indices[i] % 64;
    }
  }
  template <class Value, class Index>
  void clear(Entries<Value, Index> result) {
    for (std::size_t i = 0; i < result.size; ++i) {
      word_of(result.indices[i]) = 0;
    }
  }
  /// Whether the result has an index: 1 or 0.
  template <class Index>
  [[nodiscard]] std::uint64_t has(Index index) const {
    return words_[index % kStretch / 64] >> index % 64 & 1U;
  }

 private:
  template <class Index>
  [[nodiscard]] std::uint64_t& word_of(Index index) {
    return words_[index % kStretch / 64];
  }

  std::array<std::uint64_t, kStretch / 64> words_{};
};

/// Clears sent entries. `kept` is the residual or the momentum; all entries are in the marks'
/// stretch.
template <class Value, class Index>
void clear_sent(Value* kept, Entries<Value, Index> own, const Marks& result, PutBack put_back) {
  switch (put_back) {
    case PutBack::kOwn:
      for (std::size_t i = 0; i < own.size; ++i) {
        Value& here = kept[own.indices[i]];
        here = chosen(result.has(own.indices[i]), Value{0}, here);
      }
      return;
    case PutBack::kMerged:
      for (std::size_t i = 0; i < own.size; ++i) {
        kept[own.indices[i]] = 0;
      }
      return;
  }
}

template <class Value, class Index>
void return_dropped(Value* residual, Entries<Value, Index> dropped, const Marks& result,
                    PutBack put_back) {
  switch (put_back) {
    case PutBack::kOwn:
      for (std::size_t i = 0; i < dropped.size; ++i) {
        Value& here = residual[dropped.indices[i]];
        here = chosen(result.has(dropped.indices[i]), here + dropped.values[i], here);
      }
      return;
    case PutBack::kMerged:
      for (std::size_t i = 0; i < dropped.size; ++i) {
        residual[dropped.indices[i]] += dropped.values[i];
      }
      return;
  }
}

/// Calls visit(entries of a list, the result's marks) stretch by stretch.
template <class Value, class Index, class Visit>
void for_each_stretch(Entries<Value, Index> list, Entries<Value, Index> result, Visit visit) {
  Marks marks;
  Tail<Value, Index> tail(list);
  Tail<Value, Index> result_tail(result);
  while (!tail.empty()) {
    const std::size_t begin = tail.last() / kStretch * kStretch;
    static_cast<void>(result_tail.take_from(begin + kStretch));
    const auto result_here = result_tail.take_from(begin);
    marks.set(result_here);
    visit(tail.take_from(begin), marks);
    marks.clear(result_here);
  }
}

/// Delivers the result. `tensor` points at element `begin`; all elements in `result` follow without
/// gaps.
template <class T, class Value, class Index>
void deliver(T* tensor, std::size_t begin, Entries<Value, Index> result, Value divisor) {
  for (std::size_t i = 0; i < result.size; ++i) {
    tensor[result.indices[i] - begin] = narrow<T>(result.values[i] / divisor);
  }
}

template <class T, class Value, class Index>
void commit_without_residual(Segments<T> tensor, std::size_t d, Entries<Value, Index> result,
                             Value divisor) {
  Tail<Value, Index> tail(result);
  SegmentCursor<T> cursor(tensor);
  for (std::size_t end = d; end > 0;) {
    cursor.go_to(end - 1);
    const std::size_t begin = cursor.begin();
    std::fill_n(cursor.at(begin), end - begin, T{});
    deliver(cursor.at(begin), begin, tail.take_from(begin), divisor);
    end = begin;
  }
}

}  // namespace

template <class T, class Value, class Index>
bool representable(Entries<Value, Index> result, Value divisor) {
  const KeepDenormals guard;
  bool finite = true;
  for (std::size_t i = 0; i < result.size; ++i) {
    const auto rounded = widen(narrow<T>(result.values[i] / divisor));
    finite = finite && is_finite_key<Value>(magnitude_key(rounded));
  }
  return finite;
}

template <class T, class Value, class Index>
void commit(Segments<T> tensor, Value* residual, std::size_t d,
            const StepLists<Value, Index>& lists, Value divisor) {
  const KeepDenormals guard;
  const auto& [own, result, dropped, put_back] = lists;
  if (residual == nullptr) {
    commit_without_residual(tensor, d, result, divisor);
    return;
  }
  // A tree drops at most one list per round. Lists beyond this number are applied after the sweep,
  // which keeps their order at every index.
  constexpr std::size_t kSweptLists = 32;
  std::array<Tail<Value, Index>, kSweptLists> dropped_tails;
  const std::size_t swept = std::min(dropped.size(), kSweptLists);
  for (std::size_t list = 0; list < swept; ++list) {
    dropped_tails[list] = Tail<Value, Index>(dropped[list]);
  }
  Tail<Value, Index> own_tail(own);
  Tail<Value, Index> result_tail(result);
  Marks marks;
  SegmentCursor<T> cursor(tensor);
  for (std::size_t end = d; end > 0;) {
    cursor.go_to(end - 1);
    const std::size_t begin = std::max((end - 1) / kStretch * kStretch, cursor.begin());
    T* const tensor_here = cursor.at(begin);
    absorb_stretch(tensor_here, residual + begin, end - begin);
    const auto result_here = result_tail.take_from(begin);
    marks.set(result_here);
    clear_sent(residual, own_tail.take_from(begin), marks, put_back);
    for (std::size_t list = 0; list < swept; ++list) {
      return_dropped(residual, dropped_tails[list].take_from(begin), marks, put_back);
    }
    marks.clear(result_here);
    deliver(tensor_here, begin, result_here, divisor);
    end = begin;
  }
  for (const Entries<Value, Index> list : dropped.subspan(swept)) {
    for_each_stretch(list, result, [&](Entries<Value, Index> here, const Marks& named) {
      return_dropped(residual, here, named, lists.put_back);
    });
  }
}

template <class Value, class Index>
void mask(Value* momentum, const StepLists<Value, Index>& lists) {
  for_each_stretch(lists.own, lists.result, [&](Entries<Value, Index> here, const Marks& named) {
    clear_sent(momentum, here, named, lists.put_back);
  });
}

template <class T>
void fill_nan(Segments<T> tensor, std::size_t d) {
  for_each_segment(tensor, d, [](T* data, std::size_t begin, std::size_t end) {
    std::fill_n(data, end - begin, narrow<T>(std::numeric_limits<Accumulation<T>>::quiet_NaN()));
  });
}

template <class T, class Value>
bool all_representable(const Value* sums, std::size_t d, Value divisor) {
  const KeepDenormals guard;
  const auto finite = [](Value value) { return is_finite_key<Value>(magnitude_key(value)); };
  bool all = true;
  for (std::size_t i = 0; i < d; ++i) {
    all &= finite(sums[i]) && finite(widen(narrow<T>(sums[i] / divisor)));
  }
  return all;
}

template <class T, class Value>
void commit_whole(Segments<T> tensor, Value* residual, const Value* sums, std::size_t d,
                  Value divisor) {
  const KeepDenormals guard;
  for_each_segment(tensor, d, [&](T* data, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      data[i - begin] = narrow<T>(sums[i] / divisor);
    }
  });
  if (residual != nullptr) {
    std::fill_n(residual, d, Value{0});
  }
}

template <class T, class Value>
bool accumulate(Segments<const T> gradient, const Value* residual, Value* acc, std::size_t d) {
  const KeepDenormals guard;
  bool finite = true;
  for_each_segment(gradient, d, [&](const T* data, std::size_t begin, std::size_t end) {
    finite &= accumulate_stretch(data, residual == nullptr ? nullptr : residual + begin,
                                 acc + begin, end - begin);
  });
  return finite;
}

// The macros' arguments are types, which take no parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define GTOPK_INSTANTIATE_INDEXED(T, Value, Index)                            \
  template bool representable<T, Value, Index>(Entries<Value, Index>, Value); \
  template void commit<T, Value, Index>(Segments<T>, Value*, std::size_t,     \
                                        const StepLists<Value, Index>&, Value);
#define GTOPK_INSTANTIATE_MASK(Value, Index) \
  template void mask<Value, Index>(Value*, const StepLists<Value, Index>&);
#define GTOPK_INSTANTIATE(T, Value)                                                            \
  GTOPK_INSTANTIATE_INDEXED(T, Value, std::uint32_t)                                           \
  GTOPK_INSTANTIATE_INDEXED(T, Value, std::uint64_t)                                           \
  template void fill_nan<T>(Segments<T>, std::size_t);                                         \
  template bool all_representable<T, Value>(const Value*, std::size_t, Value);                 \
  template void commit_whole<T, Value>(Segments<T>, Value*, const Value*, std::size_t, Value); \
  template bool accumulate<T, Value>(Segments<const T>, const Value*, Value*, std::size_t);

GTOPK_INSTANTIATE(float, float)
GTOPK_INSTANTIATE(double, double)
GTOPK_INSTANTIATE(Bfloat16, float)
GTOPK_INSTANTIATE(Float16, float)
GTOPK_INSTANTIATE_MASK(float, std::uint32_t)
GTOPK_INSTANTIATE_MASK(float, std::uint64_t)
GTOPK_INSTANTIATE_MASK(double, std::uint32_t)
GTOPK_INSTANTIATE_MASK(double, std::uint64_t)

#undef GTOPK_INSTANTIATE_MASK
#undef GTOPK_INSTANTIATE
#undef GTOPK_INSTANTIATE_INDEXED
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace gtopk::sparse
