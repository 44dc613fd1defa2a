// GPU: the vectors and lists of the self-test's calls, for one element type: their contents and
// their layout in memory. This header does not know the calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "gtopk/types.hpp"
#include "src/cuda/calls.hpp"
#include "src/gpu/self_test_run.hpp"
#include "src/gtopk/value/entries.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/mix.hpp"

namespace gtopk::gpu {

/// The size from which an exact selection looks for candidates first (device/select.hpp).
inline constexpr std::uint64_t kMany = (std::uint64_t{1} << 19U) + 1;

/// The extent of the calls.
struct SelfTestExtent {
  std::uint64_t seed = 1;
  /// The number of elements of most vectors. Above 4096, a vector has several tiles.
  std::uint64_t few = 4097;
  /// The number of elements of long vectors. 0 means that there are none.
  std::uint64_t many = kMany;
};

/// Draws vectors and lists. T is the element type. Equal extents make equal elements.
template <class T>
class SelfTestVectors {
 public:
  using Value = Accumulation<T>;
  using Index = cuda::Index;

  struct Vector {
    std::vector<T> tensor;
    std::vector<Value> residual;  // if empty, there is none

    [[nodiscard]] const Value* kept() const { return residual.empty() ? nullptr : residual.data(); }
  };

  /// A vector in the device's memory.
  struct Placed {
    cuda::VectorOf acc;
    std::array<std::span<const T>, 3> pieces;  ///< pieces in host memory
    const Value* residual = nullptr;           ///< residual in host memory
  };

  struct OwnedList {
    std::vector<Index> indices;
    std::vector<Value> values;

    [[nodiscard]] sparse::Entries<Value, Index> view() const {
      return {indices.data(), values.data(), indices.size()};
    }
  };

  SelfTestVectors(SelfTestRun& run, DataType dtype, const SelfTestExtent& extent)
      : run_(run), dtype_(dtype), extent_(extent) {}

  [[nodiscard]] std::vector<Value> drawn_values(std::uint64_t count, std::uint64_t stream) const {
    return elements<Value>(count, stream);
  }

  /// Draws a vector. The last one is kept because long ones take time.
  [[nodiscard]] const Vector& drawn_vector(std::uint64_t d, bool residual = true,
                                           bool infinite = false) {
    if (vector_.tensor.size() != d) {
      vector_ = {elements<T>(d, 1), {}};
    }
    if (vector_.residual.empty() == residual) {
      vector_.residual = residual ? elements<Value>(d, 2) : std::vector<Value>();
    }
    T& middle = vector_.tensor[d / 2];
    middle = infinite ? narrow<T>(std::numeric_limits<Value>::infinity())
                      : element<T>(drawn(extent_.seed, d));
    return vector_;
  }

  /// Draws about one index in `every`, including the first.
  [[nodiscard]] OwnedList drawn_list(std::uint64_t d, std::uint64_t every) const {
    OwnedList list;
    for (std::uint64_t i = 0; i < d; ++i) {
      const std::uint64_t bits = drawn(extent_.seed + every, i);
      if (i == 0 || bits % every == 0) {
        list.indices.push_back(static_cast<Index>(i));
        list.values.push_back(element<Value>(mix(bits)));
      }
    }
    return list;
  }

  /// Places a vector in three pieces at odd addresses.
  [[nodiscard]] Placed place(const Vector& vector) {
    const std::size_t d = vector.tensor.size();
    const std::size_t cuts[] = {0, d / 3, d / 2, d};
    Placed placed;
    Value* residual = nullptr;
    if (!vector.residual.empty()) {
      const auto there = run_.mirrored(std::span(vector.residual), 1);
      placed.residual = there.host;
      residual = there.device;
    }
    std::vector<cuda::PieceOf> table;
    for (std::size_t piece = 0; piece < placed.pieces.size(); ++piece) {
      const std::size_t begin = cuts[piece];
      const std::size_t size = cuts[piece + 1] - begin;
      if (size != 0) {
        const auto there =
            run_.mirrored(std::span(vector.tensor).subspan(begin, size), 1 + 2 * piece);
        placed.pieces[piece] = {there.host, size};
        table.push_back({.tensor = there.device,
                         .residual = residual == nullptr ? nullptr : residual + begin,
                         .size = size});
      }
    }
    placed.acc.dtype = dtype_;
    placed.acc.count = static_cast<std::uint32_t>(table.size());
    placed.acc.d = d;
    placed.acc.tiles = run_.kernels().number_tiles(table.data(), placed.acc.count);
    placed.acc.pieces = run_.mirrored(std::span<const cuda::PieceOf>(table)).device;
    return placed;
  }

  void expect_vector(const Placed& seen, const Vector& expected) {
    std::size_t from = 0;
    for (const std::span<const T> piece : seen.pieces) {
      run_.expect("tensor", piece.data(), std::span(expected.tensor).subspan(from, piece.size()),
                  from);
      from += piece.size();
    }
    run_.expect("residual", seen.residual, std::span(expected.residual));
  }

  void begin_call(std::string_view kernel, std::string_view what, std::uint64_t d) {
    run_.begin(fmt::format("{} ({}{}{} elements of {})", kernel, what, what.empty() ? "" : ", ", d,
                           to_string(dtype_)));
  }

  template <class U>
  [[nodiscard]] U* pinned_one(const U& one) {
    return run_.pinned(std::span<const U>(&one, 1));
  }

 protected:
  SelfTestRun& run_;
  const DataType dtype_;
  const SelfTestExtent extent_;

 private:
  /// Draws zeros of both signs, denormals, a few magnitudes that occur often, and many that do not.
  template <class U>
  [[nodiscard]] static U element(std::uint64_t bits) {
    const Accumulation<U> sign = (bits & 1U) != 0 ? -1 : 1;
    const std::uint64_t kind = bits >> 1U & 15U;
    const std::uint64_t number = bits >> 8U;
    if (kind == 0) {
      return narrow<U>(sign * 0);
    }
    if (kind == 1) {
      const std::uint64_t smallest = 1 + number % 100;
      U denormal;
      std::memcpy(&denormal, &smallest, sizeof denormal);
      return denormal;
    }
    if (kind < 6) {
      return narrow<U>(sign * static_cast<Accumulation<U>>(1 + number % 3) / 2);
    }
    constexpr std::uint64_t kSteps = std::uint64_t{1} << 20U;
    const auto u = static_cast<Accumulation<U>>(number % kSteps) / kSteps;
    return narrow<U>(sign * 8 * u * u * u);
  }

  template <class U>
  [[nodiscard]] std::vector<U> elements(std::uint64_t count, std::uint64_t stream) const {
    std::vector<U> all(count);
    const std::uint64_t seed = mix(extent_.seed * 16 + stream);
    for (std::uint64_t i = 0; i < count; ++i) {
      all[i] = element<U>(drawn(seed, i));
    }
    return all;
  }

  Vector vector_;
};

}  // namespace gtopk::gpu
