// Benchmark (i): the cost of one step of a dense reduction on one thread, for each element type,
// beside a memcpy of as many bytes as one of its vectors has; `each` is a byte. `piece` is the size
// that the ring adds at a time (from the caches), and `large` comes from memory. A third of the
// half types' values are subnormal; in `normal`, none is.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtopk/error.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/reduction.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/element_types.hpp"
#include "tools/bench/ratios.hpp"

namespace {

using gtopk::DataType;
using gtopk::ReduceOp;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kLarge = std::size_t{64} << 20U;

/// Values around 1, of either sign; for half types a share of them is subnormal.
template <class T>
void fill(Bytes& bytes, double subnormal, std::mt19937& random) {
  auto* const values = reinterpret_cast<T*>(bytes.data());
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<double> share;
  for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    const float value = normal(random);
    if constexpr (gtopk::kIsHalf<T>) {
      values[i] = gtopk::narrow<T>(value);
      // This mask clears the exponent and keeps the sign.
      constexpr std::uint16_t kFraction = std::is_same_v<T, gtopk::Float16> ? 0x83FF : 0x807F;
      if (share(random) < subnormal) {
        values[i].bits &= kFraction;
      }
    } else if constexpr (gtopk::kIsComplex<T>) {
      values[i] = {static_cast<typename T::value_type>(value), 1};
    } else if constexpr (std::is_same_v<T, gtopk::Bool>) {
      values[i].byte = value > 0 ? 1 : 0;
    } else {
      values[i] = static_cast<T>(std::fabs(value) * 50);
    }
  }
}

/// Vectors that repeat a piece of random values.
struct Vectors {
  Vectors(std::size_t bytes, DataType type, double subnormal)
      : left(bytes), right(bytes), into(bytes) {
    std::mt19937 random(1);
    for (Bytes* const vector : {&left, &right}) {
      Bytes piece(gtopk::collectives::kPieceBytes);
      gtopk::visit_type(type, [&]<class T>() { fill<T>(piece, subnormal, random); });
      for (std::size_t at = 0; at < bytes; at += piece.size()) {
        std::memcpy(vector->data() + at, piece.data(), piece.size());
      }
    }
  }
  Bytes left;
  Bytes right;
  Bytes into;
};

void add_type(const std::string& size, std::size_t bytes, DataType type, double subnormal) {
  const std::size_t passes = kLarge / bytes;
  const std::size_t elements = bytes / size_of(type);
  const std::string prefix =
      fmt::format("{}/{}/{}", size, to_string(type), subnormal == 0 ? "normal/" : "");
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin}) {
    try {
      gtopk::collectives::check_reduction(type, op);
    } catch (const gtopk::Error&) {
      continue;
    }
    const auto reduce = [=](benchmark::State& state) {
      Vectors vectors(bytes, type, subnormal);
      for (auto _ : state) {
        gtopk::collectives::reduce(vectors.into.data(), vectors.left.data(), vectors.right.data(),
                                   elements, type, op);
      }
    };
    add(prefix + std::string(to_string(op)), size + "/copy", bytes, reduce, passes);
  }
  if (is_floating(type)) {
    const auto divide = [=](benchmark::State& state) {
      Vectors vectors(bytes, type, subnormal);
      for (auto _ : state) {
        gtopk::collectives::divide(vectors.left.data(), elements, type, 1);
      }
    };
    add(prefix + "divide", size + "/copy", bytes, divide, passes);
  }
}

void add_size(const std::string& size, std::size_t bytes) {
  add_copy(size + "/copy", bytes, bytes, kLarge / bytes);
  std::apply([&](const auto&... rows) { (add_type(size, bytes, rows.type, 1.0 / 3), ...); },
             gtopk::kElementTypes);
  add_type(size, bytes, DataType::kBfloat16, 0);
  add_type(size, bytes, DataType::kFloat16, 0);
}

}  // namespace

void add_benchmarks() {
  add_size("piece", gtopk::collectives::kPieceBytes);
  add_size("large", kLarge);
}
