// Sparse, algorithms: invalid calls are refused before anything is sent; an exchange whose sum
// overflows fails.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/reduction.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk::sparse {
namespace {

/// The error's text; empty if the call is accepted.
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
    return error.what();
  }
  return {};
}

std::string refusal_of(const std::function<void(SparseCall&)>& change) {
  SparseCall call;
  call.d = 100;
  call.options.k = 5;
  change(call);
  return refusal([&] { static_cast<void>(resolve(call)); });
}

TEST(Arguments, ThatStandForNothingAreRefused) {
  EXPECT_EQ(refusal_of([](SparseCall&) {}), "");
  EXPECT_EQ(refusal_of([](SparseCall& call) { call.dtype = DataType{77}; }),
            "there is no data type number 77");
  EXPECT_EQ(refusal_of([](SparseCall& call) { call.options.op = ReduceOp{77}; }),
            "there is no reduction number 77");
  EXPECT_EQ(refusal_of([](SparseCall& call) { call.options.algorithm = "gtop"; }),
            "unknown algorithm 'gtop'; available: gtopk, gtopk-tree, topk, dense, dense-placed, "
            "rs-ag, exact, "
            "hierarchical, gtopk-placed, sketch, random-k, true-topk, auto");
  EXPECT_EQ(refusal_of([](SparseCall& call) { call.options.put_back = PutBack{2}; }),
            "there is no put_back number 2");
  EXPECT_EQ(refusal_of([](SparseCall& call) { call.options.selector = "best"; }),
            "unknown selector 'best'; available: exact, gaussian, sampled, threshold, block");
  EXPECT_EQ(refusal([] { collectives::check_reduction(DataType{15}, ReduceOp::kSum); }),
            "there is no data type number 15");
  EXPECT_EQ(refusal([] { collectives::check_reduction(DataType::kInt32, ReduceOp{9}); }),
            "there is no reduction number 9");
}

TEST(Arguments, AScaleWhoseInverseIsInfiniteIsRefused) {
  const auto with = [](DataType dtype, ReduceOp op, double scale) {
    return refusal_of([&](SparseCall& call) {
      call.dtype = dtype;
      call.options.op = op;
      call.options.scale = scale;
    });
  };
  for (const DataType dtype : {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16}) {
    EXPECT_EQ(with(dtype, ReduceOp::kSum, 0x1p-127), "");
    EXPECT_NE(with(dtype, ReduceOp::kSum, 0x1p-128), "");
    EXPECT_EQ(with(dtype, ReduceOp::kAvg, 0x1p-95), "");
    EXPECT_NE(with(dtype, ReduceOp::kAvg, 0x1p-96), "");
    EXPECT_EQ(with(dtype, ReduceOp::kSum, 0x1p127), "");  // as large as a GradScaler's may grow
  }
  EXPECT_EQ(with(DataType::kFloat64, ReduceOp::kSum, 0x1p-1022), "");
  EXPECT_NE(with(DataType::kFloat64, ReduceOp::kSum, 0x1p-1024), "");
  EXPECT_EQ(with(DataType::kFloat32, ReduceOp::kAvg, 1e-30),
            "sparse_all_reduce AVG of float32 needs a scale of at least 1.26e-29, seen 1e-30");
}

TEST(Arguments, WiresWhoseValuesTieAreRefusedWhereNodesSelectAgain) {
  const auto with = [](const char* wire, const char* algorithm) {
    return refusal_of([&](SparseCall& call) {
      call.options.wire = wire;
      call.options.algorithm = algorithm;
    });
  };
  for (const char* const wire : {"4bit", "2bit", "ternary", "sign"}) {
    for (const char* const algorithm :
         {"gtopk", "gtopk-tree", "rs-ag", "hierarchical", "gtopk-placed"}) {
      EXPECT_EQ(with(wire, algorithm),
                std::string("wire '") + wire + "' makes many values of a list equal, among " +
                    "which '" + algorithm + "' would select by index alone; algorithms that do " +
                    "not re-select: topk, exact");
    }
    for (const char* const algorithm : {"topk", "exact", "dense", "random-k", "true-topk"}) {
      EXPECT_EQ(with(wire, algorithm), "");
    }
  }
  EXPECT_EQ(with("int8", "gtopk"), "");
}

TEST(Arguments, SayHowManyEntriesTheResultHasAtMost) {
  EXPECT_EQ(most_delivered(100, {.k = 3}, 4), 3U);
  EXPECT_EQ(most_delivered(100, {.k = 3, .selector = "sampled"}, 4), 3U);
  EXPECT_EQ(most_delivered(100, {.k = 3, .selector = "sampled"}, 1), 4U);
  EXPECT_EQ(most_delivered(100, {.k = 3, .algorithm = "topk"}, 4), 12U);
  EXPECT_EQ(most_delivered(10, {.k = 3, .algorithm = "topk"}, 4), 10U);
  EXPECT_EQ(most_delivered(100, {.algorithm = "dense"}, 4), 100U);
  const SparseOptions blocks{
      .algorithm = "topk", .selector = "block", .density = 0.05, .block = 25};
  EXPECT_EQ(most_delivered(100, blocks, 3), 12U);
  EXPECT_NE(refusal([] { static_cast<void>(most_delivered(100, {}, 4)); }), "");
}

/// An exchange of k = 3 among 4 ranks, with a buffer for `capacity` entries.
std::string refusal_of_capacity(const std::string& algorithm, std::uint64_t d, std::size_t capacity,
                                std::size_t given = 3) {
  std::vector<std::uint32_t> indices(given);
  std::iota(indices.begin(), indices.end(), 0);
  const std::vector<float> values(given);
  std::vector<std::uint32_t> result_indices(capacity);
  std::vector<float> result_values(capacity);
  std::uint64_t count = 0;
  const Preselected entries{indices, values, result_indices, result_values, &count};
  return refusal([&] {
    const Collective call = exchange(entries, d, {.k = 3, .algorithm = algorithm});
    call.check({.name = "default", .rank = 0, .size = 4});
  });
}

TEST(Arguments, OfAnExchangeMustBeIndicesInOrderAndFiniteValues) {
  const auto of = [](std::vector<std::uint32_t> indices, std::vector<float> values) {
    std::vector<std::uint32_t> result_indices(12);
    std::vector<float> result_values(12);
    std::uint64_t count = 0;
    const Preselected entries{indices, values, result_indices, result_values, &count};
    return refusal([&] { static_cast<void>(exchange(entries, 100, {.k = 3})); });
  };
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(of({}, {}), "");
  EXPECT_EQ(of({3, 5, 99}, {1, 2, 3}), "");
  EXPECT_EQ(of({5, 3}, {1, 2}),
            "exchange(gtopk) takes ascending indices below d = 100 and finite values; "
            "seen: entry 1 is 2 at index 3, after index 5");
  EXPECT_EQ(of({100}, {1}),
            "exchange(gtopk) takes ascending indices below d = 100 and finite values; "
            "seen: entry 0 is 1 at index 100");
  EXPECT_NE(of({3, 7, 7}, {1, 2, 3}), "");
  EXPECT_NE(of({3}, {infinity - infinity}), "");
  EXPECT_NE(of({3, 4}, {1, -infinity}), "");
}

TEST(Exchange, WhoseSumOverflowsIsAnErrorOnEveryRank) {
  support::InprocRanks ranks(2, support::network(1));
  const std::vector<std::uint32_t> indices = {7};
  const std::vector<float> values = {std::numeric_limits<float>::max()};
  std::vector<std::uint32_t> result_indices(2);
  std::vector<float> result_values(2);
  std::uint64_t count = 99;
  const Preselected entries{indices, values, result_indices, result_values, &count};
  const auto endings = ranks.run([&](std::uint32_t) { return exchange(entries, 100, {.k = 1}); });
  for (const auto& ending : endings) {
    EXPECT_NE(ending->text().find("a sum over the ranks is not finite"), std::string::npos)
        << ending->text();
  }
  EXPECT_EQ(count, 99U);
  EXPECT_EQ(support::group_works(ranks), "");
  EXPECT_TRUE(ranks.close().empty());
}

TEST(Options, ThatNoCallCanHaveAreRefusedBeforeIt) {
  const auto refused = [](const SparseOptions& options) {
    return refusal([&] { check_options(options); });
  };
  EXPECT_EQ(refused({.k = 5}), "");
  EXPECT_EQ(refused({.algorithm = "dense"}), "");
  EXPECT_EQ(refused({.algorithm = "auto", .density = 0.1, .semantics = Semantics::kDense}), "");
  EXPECT_EQ(refused({.selector = "block", .density = 0.1, .block = 64}), "");
  EXPECT_NE(refused({}), "");
  EXPECT_NE(refused({.algorithm = "auto"}), "");
  EXPECT_NE(refused({.k = 5, .wire = "sign"}), "");
  EXPECT_EQ(refused({.k = 5, .block = 64}), "block = 64 needs select 'block', seen 'exact'");
}

TEST(Options, TellWhatIsKnownOfEveryCall) {
  const auto traits = [](const char* algorithm, const char* wire) {
    return traits_of({.algorithm = algorithm, .wire = wire, .density = 0.1});
  };
  EXPECT_TRUE(traits("gtopk", "int8").selects);
  EXPECT_FALSE(traits("gtopk", "int8").whole_sums);
  EXPECT_TRUE(traits("topk", "sign").delivers_selections);
  EXPECT_TRUE(traits("exact", "sign").whole_sums);
  EXPECT_FALSE(traits("exact", "sign").delivers_selections);
  EXPECT_TRUE(traits("dense", "raw").delivers_all);
  EXPECT_TRUE(traits("dense", "raw").empties_residual);
  EXPECT_FALSE(traits("dense", "int8").empties_residual);
  EXPECT_TRUE(traits("dense", "int8").rounds);
  EXPECT_TRUE(traits("sketch", "raw").adds_elements);
  EXPECT_FALSE(traits("true-topk", "raw").selects);
  EXPECT_TRUE(traits_of({.selector = "block", .density = 0.1}).per_block);
  EXPECT_NE(refusal([&] { static_cast<void>(traits("auto", "raw")); }), "");
}

TEST(Arguments, OfAnExchangeWhoseResultMayNotFitAreRefused) {
  for (const char* const algorithm :
       {"gtopk", "gtopk-tree", "rs-ag", "exact", "hierarchical", "gtopk-placed"}) {
    EXPECT_EQ(refusal_of_capacity(algorithm, 100, 3), "");
    EXPECT_NE(refusal_of_capacity(algorithm, 100, 2), "");
  }
  EXPECT_EQ(refusal_of_capacity("topk", 100, 12), "");
  EXPECT_EQ(refusal_of_capacity("topk", 7, 7), "");
  EXPECT_EQ(refusal_of_capacity("topk", 100, 11),
            "exchange(topk) of k = 3 among 4 ranks has up to 12 entries; results have room for 11 "
            "indices and 11 values");
  for (const char* const algorithm : {"dense", "sketch", "random-k", "true-topk"}) {
    EXPECT_NE(refusal_of_capacity(algorithm, 100, 100), "");
  }
  EXPECT_NE(refusal_of_capacity("gtopk", 100, 100, 4), "");
  EXPECT_NE(refusal_of_capacity("none", 100, 100), "");
  EXPECT_NE(refusal_of_capacity("gtopk", std::uint64_t{1} << 33U, 100), "");
}

}  // namespace
}  // namespace gtopk::sparse
