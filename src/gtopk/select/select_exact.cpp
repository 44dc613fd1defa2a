// Sparse, select room: exact selection by a guessed threshold and one sweep.
//
// Candidates arrive in index order. When more than a bound have come, all but the first k of them
// in the selection order go, and the threshold rises above the k-th: later equals have larger
// indices and lose. So memory stays O(k) and the result exact for any data; the guess decides only
// how often that happens. When the guess was too high (fewer than k found), a second sweep takes
// all non-zeros.
#include "gtopk/select/select_exact.hpp"

#include <algorithm>
#include <cstdint>

#include "gtopk/select/sample.hpp"
#include "gtopk/select/sweep.hpp"
#include "gtopk/value/keep_denormals.hpp"
#include "gtopk/value/kth_key.hpp"

namespace gtopk::sparse {
namespace {

/// Tensors up to this size are not worth a sample.
constexpr std::size_t kSmall = 32'768;

template <class T, class Value, class Index>
class Selector {
 public:
  Selector(const T* gradient, const Value* residual, std::size_t d, std::size_t k,
           SelectScratch& scratch)
      : gradient_(gradient),
        residual_(residual),
        d_(d),
        k_(k),
        bound_(k + std::max(k, kSmall)),
        room_(std::min(bound_ + kSweepStretch, d)),
        indices_(scratch.indices.room<Index>(room_)),
        values_(scratch.values.room<Value>(room_)),
        keys_(scratch.keys) {}

  Selection run(EntriesOut<Value, Index> out) {
    const Key<Value> guess = first_threshold();
    if (!sweep(guess)) {
      return {.count = 0, .finite = false};
    }
    if (size_ < k_ && guess > 1) {
      size_ = 0;
      if (!sweep(1)) {
        return {.count = 0, .finite = false};
      }
    }
    if (size_ > k_) {
      (void)keep_first_k();
    }
    std::copy_n(indices_, size_, out.indices);
    std::copy_n(values_, size_, out.values);
    return {.count = size_, .finite = true};
  }

 private:
  [[nodiscard]] Key<Value> first_threshold() const {
    if (k_ == 0) {
      return MagnitudeKey<Value>::kInfinity;  // nothing to select, and still not to be non-finite
    }
    return d_ <= kSmall || k_ >= d_ / 2 ? 1
                                        : sampled_threshold(gradient_, residual_, d_, k_, keys_);
  }

  // False when something is not finite.
  [[nodiscard]] bool sweep(Key<Value> threshold) {
    StretchCandidates<Value> found;
    for (std::size_t begin = 0; begin < d_; begin += kSweepStretch) {
      const std::size_t count =
          sweep_stretch(gradient_ + begin, residual_ == nullptr ? nullptr : residual_ + begin,
                        std::min(kSweepStretch, d_ - begin), threshold, found);
      Key<Value> largest = 0;
      for (std::size_t i = 0; i < count; ++i) {
        largest = std::max(largest, magnitude_key(found.values[i]));
        indices_[size_ + i] = static_cast<Index>(begin + found.offsets[i]);
        values_[size_ + i] = found.values[i];
      }
      if (!is_finite_key<Value>(largest)) {
        return false;
      }
      size_ += count;
      if (size_ > bound_) {
        threshold = keep_first_k() + 1;
      }
    }
    return true;
  }

  // Returns the k-th key.
  Key<Value> keep_first_k() {
    auto* keys =
        keys_.template room<Key<Value>>(room_);  // by shape: it must not grow with the data
    std::transform(values_, values_ + size_, keys, magnitude_key<Value>);
    const auto [kth, larger, equal] = kth_largest(keys, size_, k_);
    std::size_t equals_left = std::min(k_ - larger, equal);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      const Key<Value> key = magnitude_key(values_[i]);
      const bool equal_first = key == kth && equals_left > 0;
      indices_[kept] = indices_[i];
      values_[kept] = values_[i];
      kept += key > kth || equal_first ? 1U : 0U;
      equals_left -= equal_first ? 1U : 0U;
    }
    size_ = kept;
    return kth;
  }

  const T* gradient_;
  const Value* residual_;
  std::size_t d_;
  std::size_t k_;
  std::size_t bound_;  // of the candidates held
  std::size_t room_;   // and one stretch more
  Index* indices_;
  Value* values_;
  GrowingBuffer& keys_;
  std::size_t size_ = 0;
};

}  // namespace

template <class T, class Value, class Index>
Selection select_exact(const T* gradient, const Value* residual, std::size_t d, std::size_t k,
                       EntriesOut<Value, Index> out, SelectScratch& scratch) {
  const KeepDenormals guard;
  return Selector<T, Value, Index>(gradient, residual, d, std::min(k, d), scratch).run(out);
}

template Selection select_exact(const float*, const float*, std::size_t, std::size_t,
                                EntriesOut<float, std::uint32_t>, SelectScratch&);
template Selection select_exact(const float*, const float*, std::size_t, std::size_t,
                                EntriesOut<float, std::uint64_t>, SelectScratch&);
template Selection select_exact(const double*, const double*, std::size_t, std::size_t,
                                EntriesOut<double, std::uint32_t>, SelectScratch&);
template Selection select_exact(const double*, const double*, std::size_t, std::size_t,
                                EntriesOut<double, std::uint64_t>, SelectScratch&);
template Selection select_exact(const Bfloat16*, const float*, std::size_t, std::size_t,
                                EntriesOut<float, std::uint32_t>, SelectScratch&);
template Selection select_exact(const Bfloat16*, const float*, std::size_t, std::size_t,
                                EntriesOut<float, std::uint64_t>, SelectScratch&);
template Selection select_exact(const Float16*, const float*, std::size_t, std::size_t,
                                EntriesOut<float, std::uint32_t>, SelectScratch&);
template Selection select_exact(const Float16*, const float*, std::size_t, std::size_t,
                                EntriesOut<float, std::uint64_t>, SelectScratch&);

}  // namespace gtopk::sparse
