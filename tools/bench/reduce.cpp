// Benchmark (i): what one step of a dense reduction costs on one thread, for each element type:
// picoseconds per byte of one of the two vectors, next to a memcpy of equally many bytes in the
// same run. `piece` is what the ring adds at a time (from the caches), `large` comes from memory. A
// third of the half types' values are subnormal unless told otherwise.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtopk/error.hpp"
#include "gtopk_version.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/reduction.hpp"
#include "src/numbers/accumulation.hpp"
#include "src/numbers/element_types.hpp"

namespace {

using gtopk::DataType;
using gtopk::ReduceOp;
using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

/// Picoseconds per byte: the median over `turns` calls of `work`, which handles this many bytes.
template <class Work>
double picoseconds(std::size_t bytes, int turns, Work work) {
  std::vector<double> samples;
  for (int turn = 0; turn < turns; ++turn) {
    const auto from = Clock::now();
    work();
    samples.push_back(std::chrono::duration<double, std::pico>(Clock::now() - from).count());
  }
  std::ranges::sort(samples);
  return samples[samples.size() / 2] / static_cast<double>(bytes);
}

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
      // Clears the exponent and keeps the sign.
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

struct Options {
  std::size_t large = std::size_t{64} << 20U;
  double subnormal = 1.0 / 3;
  int turns = 15;
  std::string only;
};

void measure(DataType type, std::size_t bytes, const char* size, const Options& options) {
  std::mt19937 random(1);
  Bytes left(bytes);
  Bytes right(bytes);
  Bytes into(bytes);
  gtopk::visit_type(type, [&]<class T>() {
    fill<T>(left, options.subnormal, random);
    fill<T>(right, options.subnormal, random);
  });
  const std::size_t elements = bytes / size_of(type);
  // The same total of bytes for each size: clocks are too coarse for one piece.
  const std::size_t repeats = options.large / bytes;
  const auto timed = [&](auto work) {
    return picoseconds(bytes * repeats, options.turns, [&] {
      for (std::size_t i = 0; i < repeats; ++i) {
        work();
      }
    });
  };
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin}) {
    try {
      gtopk::collectives::check_reduction(type, op);
    } catch (const gtopk::Error&) {
      continue;
    }
    const double copy = timed([&] { std::memcpy(into.data(), left.data(), bytes); });
    const double reducing = timed([&] {
      gtopk::collectives::reduce(into.data(), left.data(), right.data(), elements, type, op);
    });
    std::printf("%12s %8s %6s %8.1f %8.1f %7.2f\n", std::string(to_string(type)).c_str(),
                std::string(to_string(op)).c_str(), size, copy, reducing, reducing / copy);
  }
  if (!is_floating(type)) {
    return;
  }
  const double copy = timed([&] { std::memcpy(into.data(), left.data(), bytes); });
  const double dividing =
      timed([&] { gtopk::collectives::divide(into.data(), elements, type, 1); });
  std::printf("%12s %8s %6s %8.1f %8.1f %7.2f\n", std::string(to_string(type)).c_str(), "divide",
              size, copy, dividing, dividing / copy);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"What a step of a dense reduction costs"};
  app.add_option("-b,--bytes", options.large, "of one large vector")->capture_default_str();
  app.add_option("--subnormal", options.subnormal, "share of the half types' values")
      ->capture_default_str();
  app.add_option("-n,--turns", options.turns, "of which the medians are shown")
      ->capture_default_str();
  app.add_option("--type", options.only, "this element type alone");
  CLI11_PARSE(app, argc, argv);
  std::printf("# gtopk %s, one thread, medians of %d, picoseconds a byte\n", gtopk::kVersion,
              options.turns);
  std::printf("%12s %8s %6s %8s %8s %7s\n", "type", "op", "size", "memcpy", "reduce", "ratio");
  std::apply(
      [&](const auto&... rows) {
        const auto each = [&](const auto& row) {
          if (!options.only.empty() && options.only != row.name) {
            return;
          }
          measure(row.type, gtopk::collectives::kPieceBytes, "piece", options);
          measure(row.type, options.large, "large", options);
        };
        (each(rows), ...);
      },
      gtopk::kElementTypes);
  return 0;
}
