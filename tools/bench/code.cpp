// Benchmark (g): the cost and the savings of coding, on one thread, beside a memcpy.
// `<density>/<wire>`: a list of k of d random entries is rounded, encoded and decoded; compare
// index_bits with entropy_bits, which is log2 C(d, k) / k. `dense/<wire>`: all values of a vector
// are coded by wires that code blocks, without the sweeps of the residual.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtopk/types.hpp"
#include "src/gtopk/wire/codec.hpp"
#include "tools/bench/ratios.hpp"

namespace {

using gtopk::Choice;
using gtopk::DataType;
namespace sparse = gtopk::sparse;

constexpr std::uint64_t kElements = 25'557'032;  // ResNet-50's parameters
constexpr sparse::EntryType kType{DataType::kFloat32, 4};

/// Returns the same buffers in each turn, like an operation's pool.
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

/// One list that is sent to another rank; each step needs the steps before it.
struct Coding {
  const sparse::Codec& codec;
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  Pool pool;
  sparse::List list;
  sparse::List lost;
  sparse::Rounded rounded;
  std::span<std::byte> message;
  sparse::List back;

  Coding(const sparse::Codec& wire, const std::vector<std::uint32_t>& chosen)
      : codec(wire), indices(chosen), values(chosen.size()) {
    std::mt19937 random(2);
    std::student_t_distribution<float> heavy(4.0F);
    for (float& value : values) {
      value = std::copysign(3.0F, heavy(random)) + heavy(random);
    }
  }
  void fill() {
    pool.start_again();
    list = codec.make(kType, values.size(), pool);
    lost = codec.make(kType, values.size(), pool);
    const auto output = list.output<float, std::uint32_t>();
    std::ranges::copy(indices, output.indices);
    std::ranges::copy(values, output.values);
  }
  void round() { rounded = codec.round(kType, list, values.size(), &lost, true); }
  void encode() {
    codec.close(kType, list, rounded.kept);
    message = codec.encode(kType, list, kElements, pool);
  }
  void decode() {
    back = codec.decode(kType, {list.size, kType.index_bytes, true}, message, values.size(),
                        kElements, pool);
  }
};

double value_bits(std::string_view wire) {
  return wire == "bf16" || wire == "fp16" ? 16
         : wire == "int8"                 ? 8 + 16.0 / 256
         : wire == "4bit"                 ? 4 + 16.0 / 64
         : wire == "2bit"                 ? 2 + 64.0 / 256
         : wire == "ternary"              ? 1 + 32.0 / 256
         : wire == "sign"                 ? 1 + 32.0 / 256
                                          : 32;
}

void add_list(const sparse::CodecRow& row, const std::string& density,
              const std::vector<std::uint32_t>& indices) {
  const auto coding = std::make_shared<Coding>(row.codec, indices);
  const std::size_t k = indices.size();
  const std::string prefix = fmt::format("{}/{}/", density, row.name);
  const std::string copy = density + "/copy";
  add(prefix + "round", copy, k, [coding](benchmark::State& state) {
    coding->fill();
    for (auto _ : state) {
      coding->round();
    }
  });
  add(prefix + "encode", copy, k, [coding, k, name = row.name](benchmark::State& state) {
    coding->fill();
    coding->round();
    for (auto _ : state) {
      coding->encode();
    }
    const auto bytes = static_cast<double>(coding->message.size() - sparse::kFrontBytes);
    const auto each = static_cast<double>(k);
    state.counters["bits"] = 8 * bytes / each;
    state.counters["index_bits"] = 8 * bytes / each - value_bits(name);
    state.counters["entropy_bits"] = log2_of_choices(static_cast<double>(kElements), each) / each;
  });
  add(prefix + "decode", copy, k, [coding](benchmark::State& state) {
    coding->fill();
    coding->round();
    coding->encode();
    for (auto _ : state) {
      coding->decode();
    }
    if (coding->back.size != coding->list.size) {
      state.SkipWithError("the decoded list has another size");
    }
  });
}

void add_dense(const sparse::CodecRow& row, const std::shared_ptr<std::vector<float>>& values) {
  const sparse::BlockCoder& coder = *row.codec.blocks();
  const std::size_t d = values->size();
  const auto code = std::make_shared<std::vector<std::byte>>(coder.bytes(DataType::kFloat32, d));
  const auto back = std::make_shared<std::vector<float>>(d);
  const std::string prefix = fmt::format("dense/{}/", row.name);
  add(prefix + "encode", "dense/copy", d, [=, &coder](benchmark::State& state) {
    for (auto _ : state) {
      coder.encode(values->data(), d, code->data());
    }
    state.counters["bits"] = 8 * static_cast<double>(code->size()) / static_cast<double>(d);
  });
  add(prefix + "decode", "dense/copy", d, [=, &coder](benchmark::State& state) {
    coder.encode(values->data(), d, code->data());
    for (auto _ : state) {
      coder.decode(code->data(), d, back->data());
    }
  });
}

}  // namespace

void add_benchmarks() {
  for (const double density : {0.0001, 0.001, 0.01}) {
    const std::vector<std::uint32_t> indices = indices_of(kElements, density);
    const std::string name = fmt::format("{}", density);
    add_copy(name + "/copy", indices.size(), indices.size() * kType.bytes());
    for (const Choice& wire : gtopk::wires()) {
      add_list(sparse::codec_registry().find(wire.name), name, indices);
    }
  }
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto values = std::make_shared<std::vector<float>>(10'000'000);
  std::ranges::generate(*values, [&] { return normal(random); });
  add_copy("dense/copy", values->size(), values->size() * sizeof(float));
  for (const Choice& wire : gtopk::wires()) {
    const sparse::CodecRow& row = sparse::codec_registry().find(wire.name);
    if (row.codec.blocks() != nullptr) {
      add_dense(row, values);
    }
  }
}
