// Tests, sparse: a vector cut into the pieces that are hardest for an implementation:
// empty ones, single elements, odd lengths, odd addresses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "gtopk/types.hpp"
#include "src/gtopk/value/segments.hpp"

namespace gtopk::sparse::testing {

/// Lengths that add up to d, none above `longest`.
[[nodiscard]] inline std::vector<std::size_t> random_cuts(std::size_t d, std::size_t longest,
                                                          std::mt19937_64& random) {
  std::vector<std::size_t> lengths;
  std::size_t left = d;
  while (left > 0 || random() % 2 == 0) {
    const std::size_t shapes[] = {0, 1, 1 + random() % 9, 1 + random() % longest};
    lengths.push_back(std::min(left, std::min(shapes[random() % 4], longest)));
    left -= lengths.back();
  }
  return lengths;
}

/// Copies of a vector's pieces, each in its own memory that ends where the piece ends.
template <class T>
class Cut {
 public:
  Cut(const std::vector<T>& whole, const std::vector<std::size_t>& lengths,
      std::mt19937_64& random) {
    auto from = whole.begin();
    for (const std::size_t length : lengths) {
      const std::size_t before = random() % 4;  // elements; gives odd addresses
      std::vector<T>& block = blocks_.emplace_back(before + length);
      std::copy_n(from, length, block.begin() + static_cast<std::ptrdiff_t>(before));
      pieces_.push_back({length == 0 ? nullptr : block.data() + before, length});
      from += static_cast<std::ptrdiff_t>(length);
    }
  }

  [[nodiscard]] Segments<T> segments() const { return Segments<T>(pieces_); }
  [[nodiscard]] const std::vector<Segment>& pieces() const { return pieces_; }

  [[nodiscard]] std::vector<T> joined() const {
    std::vector<T> whole;
    for (const Segment& piece : pieces_) {
      const T* const data = static_cast<const T*>(piece.data);
      whole.insert(whole.end(), data, data + piece.size);
    }
    return whole;
  }

 private:
  std::vector<std::vector<T>> blocks_;
  std::vector<Segment> pieces_;
};

}  // namespace gtopk::sparse::testing
