// Test support: the case generator. A case is a kind of values, a kind of support, and sometimes
// one defect.
#include "tests/support/cases.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace gtopk::reference {
namespace {

enum class Values : std::uint8_t {
  kTies,
  kHeavyTail,
  kSubnormals,
  kSignedZeros,
  kNeighbours,
  kCancelling,
  kHuge,
};
enum class Support : std::uint8_t { kFull, kSparse, kShared, kDisjoint, kSomeRanksEmpty, kEmpty };

constexpr std::array<std::string_view, 7> kValueNames = {
    "ties", "heavy tail", "subnormals", "signed zeros", "neighbours", "cancelling", "huge"};
constexpr std::array<std::string_view, 6> kSupportNames = {
    "everywhere", "sparse", "shared", "disjoint", "some ranks empty", "all zero"};

/// One value of the kind, before it is rounded to the type.
double draw(Random& random, Values values, DataType type) {
  const double sign = random.one_in(2) ? -1.0 : 1.0;
  switch (values) {
    case Values::kTies:
      return sign * static_cast<double>(1 + random.below(3));
    case Values::kHeavyTail: {
      // 1/u: a few values carry most of the mass, as in gradients.
      return sign * 0.01 / (1.0 - random.uniform() + 1e-5);
    }
    case Values::kSubnormals:
      return sign * smallest(type) * static_cast<double>(random.below(9));
    case Values::kSignedZeros:
      return random.one_in(4) ? sign * static_cast<double>(1 + random.below(2)) : sign * 0.0;
    case Values::kNeighbours: {
      // Adjacent numbers: an order that looks at too few bits confuses them.
      return sign * (1.0 + epsilon(type) * static_cast<double>(random.below(4)));
    }
    case Values::kCancelling:
      return sign * (random.one_in(4) ? 2.0 : 1.0);
    case Values::kHuge:
      return sign * largest(type) * (random.one_in(3) ? 1.0 : 0.3);
  }
  return 0.0;
}

struct Shape {
  std::uint64_t d;
  std::uint64_t k;
};

Shape draw_shape(Random& random, const std::string& algorithm, DataType type) {
  static constexpr std::array<std::uint64_t, 18> kSizes = {1,  2,  3,  5,  7,  8,  9,   15,  16,
                                                           17, 31, 33, 64, 65, 97, 128, 257, 1000};
  std::uint64_t d = kSizes.at(random.below(kSizes.size()));
  if ((algorithm.starts_with("dense") || algorithm == "true-topk") && random.one_in(12)) {
    // Around the size from which dense uses the ring.
    d = kDenseTreeBytes / size_of(accumulation_type(type)) + random.below(3) - 1;
  }
  if (algorithm == "sketch" && !random.one_in(4)) {
    // k is so small that the sketch is smaller than d.
    const std::uint64_t k = 1 + random.below(5);
    return {60 * k + random.below(100), k};
  }
  const std::array<std::uint64_t, 7> counts = {
      1, 2, 1 + d / 50, 1 + d / 10, 1 + d / 3, d, d + 1 + random.below(5)};
  return {d, counts.at(random.below(counts.size()))};
}

/// Whether rank `rank` of `ranks` has a non-zero at `index`.
bool covers(Random& random, Support support, std::uint64_t index, std::uint32_t rank,
            std::uint32_t ranks, std::uint64_t salt) {
  switch (support) {
    case Support::kFull:
      return true;
    case Support::kSparse:
      return random.one_in(5);
    case Support::kShared:
      return (index * 2654435761U + salt) % 7 < 2;
    case Support::kDisjoint:
      return index % ranks == rank;
    case Support::kSomeRanksEmpty:
      return (salt >> (rank % 16U)) % 2 == 0;
    case Support::kEmpty:
      return false;
  }
  return false;
}

/// One element of one rank becomes NaN or infinite, in its gradient or its residual.
std::string spoil(Random& random, Problem& problem) {
  const auto rank = random.below(problem.ranks.size());
  const std::uint64_t index = random.below(problem.d);
  static constexpr std::array<double, 3> kBad = {std::numeric_limits<double>::quiet_NaN(),
                                                 std::numeric_limits<double>::infinity(),
                                                 -std::numeric_limits<double>::infinity()};
  const double bad = kBad.at(random.below(kBad.size()));
  Input& input = problem.ranks[rank];
  const bool in_residual = input.residual.has_value() && random.one_in(2);
  if (in_residual) {
    store(accumulation_type(problem.type), *input.residual, index, bad);
  } else {
    store(problem.type, input.gradient, index, bad);
  }
  return fmt::format(", rank {} holds {} in its {} at {}", rank, bad,
                     in_residual ? "residual" : "gradient", index);
}

}  // namespace

std::vector<std::string> algorithms() {
  std::vector<std::string> names;
  for (const Choice& choice : gtopk::algorithms()) {
    names.emplace_back(choice.name);
  }
  return names;
}

bool sends_lists(const std::string& algorithm) {
  return !algorithm.starts_with("dense") && algorithm != "random-k" && algorithm != "true-topk" &&
         algorithm != "sketch";
}

std::vector<std::string> wires(const std::string& algorithm) {
  const bool reselects = sends_lists(algorithm) && algorithm != "topk" && algorithm != "exact";
  std::vector<std::string> names;
  for (const Choice& choice : gtopk::wires()) {
    const bool ties = choice.name == "4bit" || choice.name == "2bit" || choice.name == "ternary" ||
                      choice.name == "sign";
    if (!reselects || !ties) {
      names.emplace_back(choice.name);
    }
  }
  return names;
}

std::uint64_t number_of(const std::string& algorithm) {
  const std::vector<std::string> all = algorithms();
  return static_cast<std::uint64_t>(std::ranges::find(all, algorithm) - all.begin());
}

Case random_case(std::uint64_t seed, DataType type, std::uint32_t ranks,
                 const std::string& algorithm) {
  Random random(seed);
  const DataType acc_type = accumulation_type(type);
  const auto values = static_cast<Values>(random.below(kValueNames.size()));
  const auto support =
      static_cast<Support>(random.one_in(3) ? 0 : random.below(kSupportNames.size()));
  const Shape shape = draw_shape(random, algorithm, type);
  const std::uint64_t salt = random.below(1U << 16U);

  Case made;
  made.seed = seed;
  Problem& problem = made.problem;
  problem.type = type;
  problem.d = shape.d;
  problem.options.k = shape.k;
  problem.options.algorithm = algorithm;
  if (algorithm == "random-k" || algorithm == "sketch") {
    problem.options.seed = seed;
  }
  problem.options.put_back = random.one_in(2) ? PutBack::kOwn : PutBack::kMerged;
  problem.options.op = random.one_in(2) ? ReduceOp::kSum : ReduceOp::kAvg;

  // With residuals, without, or mixed: each rank may choose.
  const std::uint64_t with_residual = random.below(4);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    Input input;
    input.gradient = zeros(type, shape.d);
    if (with_residual < 2 || (with_residual == 2 && random.one_in(2))) {
      input.residual = zeros(acc_type, shape.d);
    }
    for (std::uint64_t i = 0; i < shape.d; ++i) {
      if (!covers(random, support, i, rank, ranks, salt)) {
        continue;
      }
      double value = draw(random, values, type);
      if (values == Values::kCancelling && rank % 2 == 1 && !random.one_in(4)) {
        value = -load(type, problem.ranks[rank - 1].gradient, i);  // the neighbour's opposite
      }
      store(type, input.gradient, i, value);
      if (input.residual && with_residual != 0 && random.one_in(2)) {
        const double scale = values == Values::kHuge ? 0.25 : 1.0;
        store(acc_type, *input.residual, i, scale * draw(random, values, acc_type));
      }
    }
    problem.ranks.push_back(std::move(input));
  }
  const std::string spoiled = random.one_in(12) ? spoil(random, problem) : std::string();
  made.description = fmt::format("seed {}: {} {} P={} d={} k={} {} put_back={}, {} {}{}", seed,
                                 algorithm, to_string(type), ranks, shape.d, shape.k,
                                 to_string(problem.options.op), to_string(problem.options.put_back),
                                 kValueNames.at(static_cast<std::size_t>(values)),
                                 kSupportNames.at(static_cast<std::size_t>(support)), spoiled);
  return made;
}

Problem published_counterexample(DataType type, PutBack put_back, const std::string& algorithm,
                                 ReduceOp op) {
  struct Entry {
    std::uint64_t index;
    double value;
  };
  constexpr std::array<Entry, 4> kEntries = {{{0, 1.0}, {1, 2.0}, {0, 3.0}, {2, 0.5}}};
  Problem problem;
  problem.type = type;
  problem.d = 3;
  problem.options.k = 1;
  problem.options.algorithm = algorithm;
  problem.options.put_back = put_back;
  problem.options.op = op;
  for (const Entry& entry : kEntries) {
    Input input;
    input.gradient = zeros(type, problem.d);
    input.residual = zeros(accumulation_type(type), problem.d);
    store(type, input.gradient, entry.index, entry.value);
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

}  // namespace gtopk::reference
