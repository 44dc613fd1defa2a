// Benchmark (a): the whole compress step of one rank (select, compact, commit) on one thread, by
// each selector, beside a memcpy of the same d floats and the minimum memory traffic of any such
// step: one sweep that reads both arrays, and one that writes both. It also times the merge of two
// exact selections, with re-selection, beside std::merge of their pairs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtopk/types.hpp"
#include "src/gtopk/merge/merge.hpp"
#include "src/gtopk/residual/commit.hpp"
#include "src/gtopk/select/selector.hpp"
#include "src/gtopk/value/growing_buffer.hpp"
#include "tools/bench/ratios.hpp"

namespace {

using benchmark::State;
using gtopk::sparse::Entries;
using gtopk::sparse::EntriesOut;
using gtopk::sparse::SelectorRow;

constexpr std::size_t kBlock = 4096;  // elements per block, for the selector `block`

/// An array made by plain operator new, because torch's allocator uses malloc, so page size and
/// alignment are what users get. It is touched here, so that page faults are not timed.
class Floats {
 public:
  explicit Floats(std::size_t count) : data_(memory_.array<float>(count)) {
    std::fill_n(data_, count, 0.0F);
  }
  [[nodiscard]] float* get() const { return data_; }

 private:
  gtopk::sparse::GrowingBuffer memory_;
  float* data_;
};

struct List {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  std::size_t size = 0;

  explicit List(std::size_t capacity) : indices(capacity), values(capacity) {}
  [[nodiscard]] Entries<float, std::uint32_t> view() const {
    return {indices.data(), values.data(), size};
  }
  [[nodiscard]] EntriesOut<float, std::uint32_t> out() { return {indices.data(), values.data()}; }
};

/// Returns what another rank with independent data of the same kind would send.
List other_selection(std::size_t d, std::size_t k, std::mt19937_64& random) {
  List list(k);
  std::uniform_int_distribution<std::uint32_t> index(0, static_cast<std::uint32_t>(d - 1));
  std::vector<std::uint32_t> all(2 * k + 16);
  std::generate(all.begin(), all.end(), [&] { return index(random); });
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::shuffle(all.begin(), all.end(), random);
  all.resize(std::min(k, all.size()));
  std::sort(all.begin(), all.end());
  std::exponential_distribution<float> excess(0.4F);
  list.size = all.size();
  list.indices = all;
  list.values.resize(all.size());
  std::generate(list.values.begin(), list.values.end(), [&] {
    const float magnitude = 4.6F + excess(random);
    return (random() & 1U) != 0 ? magnitude : -magnitude;
  });
  return list;
}

using Pairs = std::vector<std::pair<std::uint32_t, float>>;

Pairs pairs_of(const List& list) {
  Pairs pairs(list.size);
  for (std::size_t i = 0; i < list.size; ++i) {
    pairs[i] = {list.indices[i], list.values[i]};
  }
  return pairs;
}

/// Reads both arrays once, with the one addition that every selection makes.
std::uint32_t read_both(const float* left, const float* right, std::size_t d) {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < d; ++i) {
    bits |= std::bit_cast<std::uint32_t>(left[i] + right[i]);
  }
  return bits;
}

/// The arrays of a rank.
struct Arrays {
  explicit Arrays(std::size_t elements) : d(elements) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    std::generate_n(gradient.get(), d, [&] { return normal(random); });
    std::generate_n(residual.get(), d, [&] { return normal(random); });
  }
  void copy_gradient() const { std::memcpy(tensor.get(), gradient.get(), d * sizeof(float)); }

  std::size_t d;
  Floats gradient{d};
  Floats tensor{d};
  Floats residual{d};
  Floats written{d};
  Floats also_written{d};
};

/// Returns arrays that are made when first needed, so that a filter saves their cost.
const Arrays& arrays_of(std::size_t d) {
  static std::map<std::size_t, Arrays> all;
  return all.try_emplace(d, d).first->second;
}

/// One step of a rank by one selector.
struct Step {
  Step(const Arrays& of, const SelectorRow& row, double share)
      : arrays(of),
        selector(row),
        density(share),
        k(row.per_block ? gtopk::selection_size(of.d, share, kBlock)
                        : gtopk::selection_size(of.d, share)),
        own(row.most_of(of.d, k)) {
    std::mt19937_64 random(2);
    other = other_selection(of.d, k, random);
    own_list.indices = reinterpret_cast<std::byte*>(own.indices.data());
    own_list.values = reinterpret_cast<std::byte*>(own.values.data());
    arrays.copy_gradient();
  }
  void select() {
    const auto selection = selector.select({.tensor = arrays.tensor.get(),
                                            .residual = arrays.residual.get(),
                                            .d = arrays.d,
                                            .dtype = gtopk::DataType::kFloat32,
                                            .k = k,
                                            .entry = {},
                                            .density = density,
                                            .block = kBlock,
                                            .state = state},
                                           own_list, select_scratch);
    own.size = selection.count;
    state = selection.next;
  }
  void merge() {
    auto dropped_out = dropped.out();
    const auto merged = gtopk::sparse::merge(own.view(), other.view(), k, result.out(),
                                             &dropped_out, merge_scratch);
    result.size = merged.kept;
    dropped.size = merged.dropped;
  }
  void commit() {
    const std::array dropped_lists{dropped.view()};
    const gtopk::sparse::StepLists<float, std::uint32_t> lists{
        .own = own.view(), .result = result.view(), .dropped = dropped_lists};
    gtopk::sparse::commit<float, float, std::uint32_t>(arrays.tensor.get(), arrays.residual.get(),
                                                       arrays.d, lists, 2.0F);
  }

  const Arrays& arrays;
  const SelectorRow& selector;
  double density;
  std::size_t k;
  List own;
  List other{0};
  List result{3 * k};
  List dropped{3 * k};
  gtopk::sparse::List own_list;
  gtopk::SelectorState state;
  gtopk::sparse::SelectScratch select_scratch;
  gtopk::sparse::MergeScratch merge_scratch;
};

void add_sweeps(const std::string& prefix, std::size_t d) {
  add(prefix + "memcpy", "", d, [d](State& state) {
    const Arrays& arrays = arrays_of(d);
    arrays.copy_gradient();
    for (auto _ : state) {
      std::memcpy(arrays.written.get(), arrays.gradient.get(), d * sizeof(float));
      benchmark::ClobberMemory();
    }
  });
  add(prefix + "read", prefix + "memcpy", d, [d](State& state) {
    const Arrays& arrays = arrays_of(d);
    for (auto _ : state) {
      benchmark::DoNotOptimize(read_both(arrays.gradient.get(), arrays.residual.get(), d));
    }
  });
  add(prefix + "sweeps", prefix + "memcpy", d, [d](State& state) {
    const Arrays& arrays = arrays_of(d);
    for (auto _ : state) {
      benchmark::DoNotOptimize(read_both(arrays.gradient.get(), arrays.residual.get(), d));
      std::fill_n(arrays.written.get(), d, 0.0F);
      std::fill_n(arrays.also_written.get(), d, 0.0F);
      benchmark::ClobberMemory();
    }
  });
}

void add_merges(const std::string& prefix, const std::function<Step&()>& step) {
  add(prefix + "std::merge", "", 1, [step](State& state) {
    Step& rank = step();
    rank.select();
    const Pairs own = pairs_of(rank.own);
    const Pairs other = pairs_of(rank.other);
    Pairs both(own.size() + other.size());
    for (auto _ : state) {
      std::merge(own.begin(), own.end(), other.begin(), other.end(), both.begin(),
                 [](const auto& left, const auto& right) { return left.first < right.first; });
      benchmark::ClobberMemory();
    }
  });
  add(prefix + "merge", prefix + "std::merge", 1, [step](State& state) {
    Step& rank = step();
    rank.select();
    for (auto _ : state) {
      rank.merge();
    }
  });
}

void add_step(const std::string& prefix, std::size_t d, double density, const SelectorRow& row) {
  const std::function<Step&()> step =
      [=, &row, made = std::make_shared<std::unique_ptr<Step>>()]() -> Step& {
    if (!*made) {
      *made = std::make_unique<Step>(arrays_of(d), row, density);
    }
    (*made)->arrays.copy_gradient();  // part of a backward, so not timed
    return **made;
  };
  const std::string name = fmt::format("{}{}/", prefix, row.name);
  add(name + "select", prefix + "memcpy", d, [step](State& state) {
    Step& rank = step();
    for (auto _ : state) {
      rank.select();
    }
    state.counters["selected"] = static_cast<double>(rank.own.size);
  });
  add(name + "commit", prefix + "memcpy", d, [step](State& state) {
    Step& rank = step();
    rank.select();
    rank.merge();
    for (auto _ : state) {
      rank.commit();
    }
  });
  add(name + "step", prefix + "memcpy " + prefix + "sweeps", d, [step](State& state) {
    Step& rank = step();
    for (auto _ : state) {
      rank.select();
      state.PauseTiming();
      rank.merge();
      state.ResumeTiming();
      rank.commit();
    }
  });
  if (row.name == "exact") {
    add_merges(prefix, step);
  }
}

}  // namespace

void add_benchmarks() {
  // These are ResNet-50's parameters, and a short tensor.
  for (const auto& [d, density] : {std::pair{25'557'032, 0.001}, {500'000, 0.051114}}) {
    const std::string prefix = fmt::format("{}/", d);
    const auto elements = static_cast<std::size_t>(d);
    add_sweeps(prefix, elements);
    for (const gtopk::Choice& choice : gtopk::selectors()) {
      add_step(prefix, elements, density, gtopk::sparse::selector_registry().find(choice.name));
    }
  }
}
