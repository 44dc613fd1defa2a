// Benchmark (g): what coding a dense float32 vector costs, on one thread. For each wire that codes
// blocks: nanoseconds per element to encode and to decode, next to a memcpy of the vector in the
// same run, and how many copies that is. Sweeps of the residual are not in it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtopk/types.hpp"
#include "gtopk_version.hpp"
#include "src/gtopk/wire/codec.hpp"

namespace {

using gtopk::DataType;
namespace sparse = gtopk::sparse;
using Clock = std::chrono::steady_clock;

double nanoseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::nano>(to - from).count();
}

double median(std::vector<double> samples) {
  std::ranges::sort(samples);
  return samples[samples.size() / 2];
}

void measure(const sparse::CodecRow& row, const std::vector<float>& values, int turns) {
  const sparse::BlockCoder& coder = *row.codec.blocks();
  const std::size_t d = values.size();
  std::vector<float> copy(d);
  std::vector<std::byte> code(coder.bytes(DataType::kFloat32, d));
  std::vector<double> copying;
  std::vector<double> encoding;
  std::vector<double> decoding;
  for (int turn = 0; turn < turns; ++turn) {
    const auto begin = Clock::now();
    std::memcpy(copy.data(), values.data(), d * sizeof(float));
    const auto is_copied = Clock::now();
    coder.encode(values.data(), d, code.data());
    const auto is_encoded = Clock::now();
    coder.decode(code.data(), d, copy.data());
    const auto is_decoded = Clock::now();
    copying.push_back(nanoseconds(begin, is_copied));
    encoding.push_back(nanoseconds(is_copied, is_encoded));
    decoding.push_back(nanoseconds(is_encoded, is_decoded));
  }
  const auto each = static_cast<double>(d);
  const double one_copy = median(copying);
  std::printf("%10s %8.3f %8.3f %8.3f %8.2f %8.2f %8.3f\n", std::string(row.name).c_str(),
              one_copy / each, median(encoding) / each, median(decoding) / each,
              median(encoding) / one_copy, median(decoding) / one_copy,
              8 * static_cast<double>(code.size()) / each);
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t d = 10'000'000;
  int turns = 101;
  CLI::App app{"What coding a dense vector costs"};
  app.add_option("-d,--elements", d, "elements of the vector")->capture_default_str();
  app.add_option("-n,--turns", turns, "of which the medians are shown")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(d);
  std::ranges::generate(values, [&] { return normal(random); });
  std::printf("# gtopk %s, %zu float32, medians of %d, ns and bits an element\n", gtopk::kVersion,
              d, turns);
  std::printf("%10s %8s %8s %8s %8s %8s %8s\n", "wire", "copy", "encode", "decode", "encode/c",
              "decode/c", "bits");
  for (const gtopk::Choice& wire : gtopk::wires()) {
    const sparse::CodecRow& row = sparse::codec_registry().find(wire.name);
    if (row.codec.blocks() != nullptr) {
      measure(row, values, turns);
    }
  }
  return 0;
}
