// Benchmark (g): what coding costs and saves, on one thread. For each wire, a list of k of d
// entries at random is rounded, encoded and decoded; prints nanoseconds per entry, next to a copy
// of the raw list in the same run, and bits per index, next to the entropy log2 C(d, k) / k.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "gtopk/types.hpp"
#include "gtopk_version.hpp"
#include "src/gtopk/wire/codec.hpp"

namespace {

using gtopk::Choice;
using gtopk::DataType;
namespace sparse = gtopk::sparse;
using Clock = std::chrono::steady_clock;

/// Gives the same buffers in each turn, like an operation's pool.
class Pool final : public sparse::BufferSource {
 public:
  std::span<std::byte> buffer(std::size_t bytes) override {
    if (next_ == buffers_.end()) {
      next_ = buffers_.insert(buffers_.end(), std::vector<std::byte>{});
    }
    std::vector<std::byte>& memory = *next_++;
    if (memory.size() < bytes) {
      memory.resize(bytes);
    }
    return std::span(memory).first(bytes);
  }
  void start_again() { next_ = buffers_.begin(); }

 private:
  std::list<std::vector<std::byte>> buffers_;
  std::list<std::vector<std::byte>>::iterator next_ = buffers_.end();
};

std::vector<std::uint32_t> indices_of(std::uint64_t d, double density) {
  std::mt19937_64 random(1);
  std::geometric_distribution<std::uint64_t> gap(density);
  std::vector<std::uint32_t> indices;
  for (std::uint64_t next = gap(random); next < d; next += 1 + gap(random)) {
    indices.push_back(static_cast<std::uint32_t>(next));
  }
  return indices;
}

double log2_of_choices(double d, double k) {
  return (std::lgamma(d + 1) - std::lgamma(k + 1) - std::lgamma(d - k + 1)) / std::log(2.0);
}

struct Median {
  std::vector<double> samples;
  void add(Clock::time_point from, Clock::time_point to) {
    samples.push_back(std::chrono::duration<double, std::nano>(to - from).count());
  }
  [[nodiscard]] double value() {
    std::ranges::sort(samples);
    return samples[samples.size() / 2];
  }
};

void measure(const sparse::CodecRow& row, std::uint64_t d,
             const std::vector<std::uint32_t>& indices, int turns) {
  const sparse::EntryType type{DataType::kFloat32, 4};
  const sparse::Codec& codec = row.codec;
  const std::size_t k = indices.size();
  std::mt19937 random(2);
  std::student_t_distribution<float> heavy(4.0F);
  std::vector<float> values(k);
  for (float& value : values) {
    value = std::copysign(3.0F, heavy(random)) + heavy(random);
  }

  Pool pool;
  Median copying;
  Median rounding;
  Median encoding;
  Median decoding;
  std::size_t bytes = 0;
  std::vector<std::byte> copy(k * type.bytes());
  for (int turn = 0; turn < turns; ++turn) {
    pool.start_again();
    sparse::List list = codec.make(type, k, pool);
    const sparse::List lost = codec.make(type, k, pool);
    const auto output = list.output<float, std::uint32_t>();
    std::ranges::copy(indices, output.indices);
    std::ranges::copy(values, output.values);
    const auto copy_begins = Clock::now();
    std::memcpy(copy.data(), list.memory.data(), std::min(copy.size(), list.memory.size()));
    const auto begin = Clock::now();
    const sparse::Rounded rounded = codec.round(type, list, k, &lost, true);
    const auto is_rounded = Clock::now();
    codec.close(type, list, rounded.kept);
    const std::span<std::byte> message = codec.encode(type, list, d, pool);
    const auto is_encoded = Clock::now();
    const sparse::List back =
        codec.decode(type, {list.size, type.index_bytes, true}, message, k, d, pool);
    const auto is_decoded = Clock::now();
    if (back.size != list.size) {
      std::abort();
    }
    bytes = message.size() - sparse::kFrontBytes;
    copying.add(copy_begins, begin);
    rounding.add(begin, is_rounded);
    encoding.add(is_rounded, is_encoded);
    decoding.add(is_encoded, is_decoded);
  }
  const auto each = static_cast<double>(k);
  const double value_bits = row.name == "bf16" || row.name == "fp16" ? 16
                            : row.name == "int8"                     ? 8 + 16.0 / 256
                            : row.name == "4bit"                     ? 4 + 16.0 / 64
                            : row.name == "2bit"                     ? 2 + 64.0 / 256
                            : row.name == "sign"                     ? 1 + 32.0 / 256
                                                                     : 32;
  std::printf("%10s %9.5f %9zu %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %7.3f\n",
              std::string(row.name).c_str(), each / static_cast<double>(d), k,
              copying.value() / each, rounding.value() / each, encoding.value() / each,
              decoding.value() / each, 8 * static_cast<double>(bytes) / each,
              8 * static_cast<double>(bytes) / each - value_bits,
              log2_of_choices(static_cast<double>(d), each) / each,
              static_cast<double>(bytes) / each / static_cast<double>(type.bytes()));
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t d = 25'557'032;  // ResNet-50's parameters
  std::vector<double> densities{0.0001, 0.001, 0.01};
  int turns = 101;
  CLI::App app{"What coding a list costs and saves"};
  app.add_option("-d,--elements", d, "elements of the gradient")->capture_default_str();
  app.add_option("--density", densities, "of the lists")->capture_default_str();
  app.add_option("-n,--turns", turns, "of which the medians are shown")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::printf("# gtopk %s, float32 entries of d = %llu, medians of %d, ns and bits an entry\n",
              gtopk::kVersion, static_cast<unsigned long long>(d), turns);
  std::printf("%10s %9s %9s %8s %8s %8s %8s %8s %8s %8s %7s\n", "wire", "density", "k", "copy",
              "round", "encode", "decode", "bits", "index", "entropy", "of_raw");
  for (const double density : densities) {
    const std::vector<std::uint32_t> indices = indices_of(d, density);
    for (const Choice& wire : gtopk::wires()) {
      measure(sparse::codec_registry().find(wire.name), d, indices, turns);
    }
  }
  return 0;
}
