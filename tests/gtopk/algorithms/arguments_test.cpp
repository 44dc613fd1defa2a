// Sparse, algorithms room: calls that no rank may make are refused before anything is sent.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "collectives/reduction.hpp"
#include "gtopk/algorithms/sparse_all_reduce.hpp"
#include "gtopk/error.hpp"

namespace gtopk::sparse {
namespace {

/// What the call is refused with; empty when it is not.
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
  return refusal([&] { static_cast<void>(signature_of(call)); });
}

TEST(Arguments, OutsideTheirEnumerationsAreRefusedByNumber) {
  EXPECT_EQ(refusal_of([](SparseCall&) {}), "");
  EXPECT_EQ(refusal_of([](SparseCall& call) { call.dtype = DataType{77}; }),
            "there is no data type number 77");
  EXPECT_EQ(refusal_of([](SparseCall& call) { call.options.op = ReduceOp{77}; }),
            "there is no reduction number 77");
  EXPECT_EQ(refusal_of([](SparseCall& call) { call.options.algorithm = Algorithm{4}; }),
            "there is no algorithm number 4");
  EXPECT_EQ(refusal_of([](SparseCall& call) { call.options.put_back = PutBack{2}; }),
            "there is no put_back number 2");
  EXPECT_EQ(refusal_of([](SparseCall& call) { call.options.selector = Selector{1}; }),
            "there is no selector number 1");
  EXPECT_EQ(refusal([] { collectives::check_reduction(DataType{10}, ReduceOp::kSum); }),
            "there is no data type number 10");
  EXPECT_EQ(refusal([] { collectives::check_reduction(DataType::kInt32, ReduceOp{8}); }),
            "there is no reduction number 8");
}

/// An exchange of k = 3 among 4 ranks, with room for `room` entries.
std::string refusal_of_room(Algorithm algorithm, std::uint64_t d, std::size_t room,
                            std::size_t given = 3) {
  const std::vector<std::uint32_t> indices(given);
  const std::vector<float> values(given);
  std::vector<std::uint32_t> result_indices(room);
  std::vector<float> result_values(room);
  std::uint64_t count = 0;
  const PreselectedCall call{indices,        values,        d,     {.k = 3, .algorithm = algorithm},
                             result_indices, result_values, &count};
  return refusal([&] { check_preselected(call, 4); });
}

TEST(Arguments, OfAnExchangeWhoseResultMayNotFitAreRefused) {
  for (const Algorithm algorithm : {Algorithm::kGtopk, Algorithm::kGtopkTree}) {
    EXPECT_EQ(refusal_of_room(algorithm, 100, 3), "");
    EXPECT_NE(refusal_of_room(algorithm, 100, 2), "");
  }
  EXPECT_EQ(refusal_of_room(Algorithm::kTopk, 100, 12), "");
  EXPECT_EQ(refusal_of_room(Algorithm::kTopk, 7, 7), "");
  EXPECT_EQ(refusal_of_room(Algorithm::kTopk, 100, 11),
            "exchange(topk) of k = 3 among 4 ranks has up to 12 entries; results have room for 11 "
            "indices and 11 values");
  EXPECT_NE(refusal_of_room(Algorithm::kDense, 100, 100), "");
  EXPECT_NE(refusal_of_room(Algorithm::kGtopk, 100, 100, 4), "");
  EXPECT_NE(refusal_of_room(Algorithm{9}, 100, 100), "");
  EXPECT_NE(refusal_of_room(Algorithm::kGtopk, std::uint64_t{1} << 33U, 100), "");
}

}  // namespace
}  // namespace gtopk::sparse
