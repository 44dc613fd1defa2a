// Test support: vectors and lists in a GPU's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/cuda/kernels_gpu.hpp"
#include "tests/gtopk/value/all_types.hpp"
#include "tests/gtopk/value/cut.hpp"
#include "tests/gtopk/value/reference.hpp"

namespace gtopk::sparse::testing {

/// A vector in random pieces, each in memory of its own, or in one piece; and its residual.
template <class T>
class VectorThere {
 public:
  using Value = Accumulation<T>;

  /// `residual`: as long as the vector, or empty: there is none. The first element is number
  /// `begin`.
  VectorThere(const std::vector<T>& whole, const std::vector<Value>& residual, bool cut,
              std::mt19937_64& random, std::uint64_t begin = 0)
      : residual_(Place::kDevice, residual), d_(whole.size()) {
    const auto lengths = cut ? random_cuts(d_, 1 + d_, random) : std::vector<std::size_t>{d_};
    std::vector<cuda::PieceOf> table;
    auto from = whole.begin();
    std::size_t done = 0;
    for (const std::size_t length : lengths) {
      if (length == 0) {
        continue;
      }
      const auto to = from + static_cast<std::ptrdiff_t>(length);
      const std::size_t before = random() % 4;  // elements; gives odd addresses
      pieces_.emplace_back(Place::kDevice, std::vector<T>(from, to), before);
      cuda::PieceOf& piece = table.emplace_back();
      piece.tensor = pieces_.back().data();
      piece.residual = residual.empty() ? nullptr : residual_.data() + done;
      piece.size = length;
      from = to;
      done += length;
    }
    acc_.dtype = kTypeOf<T>;
    acc_.count = static_cast<std::uint32_t>(table.size());
    acc_.d = d_;
    acc_.tiles = Gpu::get().calls().number_tiles(table.data(), acc_.count);
    for (cuda::PieceOf& piece : table) {
      piece.begin += begin;
    }
    table_.emplace_back(Place::kDevice, table);
    acc_.pieces = table_.back().data();
  }

  [[nodiscard]] const cuda::VectorOf& view() const { return acc_; }
  [[nodiscard]] std::vector<T> joined() const {
    std::vector<T> whole;
    for (const Array<T>& piece : pieces_) {
      const std::vector<T> part = piece.read();
      whole.insert(whole.end(), part.begin(), part.end());
    }
    return whole;
  }
  [[nodiscard]] std::vector<Value> residual() const { return residual_.read(); }

 private:
  Array<Value> residual_;
  std::size_t d_;
  std::vector<Array<T>> pieces_;
  std::vector<Array<cuda::PieceOf>> table_;  ///< one
  cuda::VectorOf acc_;
};

template <class Value, class Index>
class ListThere {
 public:
  ListThere(Place place, std::size_t capacity)
      : indices_(place, capacity), values_(place, capacity) {}
  ListThere(Place place, const List<Value, Index>& list)
      : indices_(place, list.indices), values_(place, list.values) {}

  [[nodiscard]] cuda::ListOf of() const {
    return {indices_.data(), values_.data(), indices_.size()};
  }
  [[nodiscard]] DetachedEntries entries() const { return {indices_.data(), values_.data()}; }
  /// Of pinned memory: where the host writes.
  [[nodiscard]] EntriesOut<Value, Index> out() const { return {indices_.data(), values_.data()}; }
  [[nodiscard]] List<Value, Index> read(std::size_t size) const {
    return {indices_.read(size), values_.read(size)};
  }

 private:
  Array<Index> indices_;
  Array<Value> values_;
};

}  // namespace gtopk::sparse::testing
