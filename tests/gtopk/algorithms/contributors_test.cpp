// Sparse, algorithms: a mean over contributors divides each sum by the number of ranks that
// sent its index, in one exchange: the sequential reference's tensor and residuals, bit for bit on
// every rank. Sums, dropped entries and messages are those of any other call but for the counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "gtopk/collectives.hpp"
#include "src/collectives/header.hpp"
#include "src/engine/group.hpp"
#include "src/gtopk/algorithms/sparse_all_reduce.hpp"
#include "tests/reference/reference_selectors.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using reference::Problem;
using support::InprocRanks;
using support::Tensor;
using support::uneven_network;
using transport::TagKind;
using transport::inproc::Fault;
using transport::inproc::Sent;

constexpr std::uint32_t kSizes[] = {1, 2, 3, 4, 5, 6, 7, 8};

Problem over_contributors(Problem problem) {
  problem.options.op = ReduceOp::kAvg;
  problem.options.mean = MeanOver::kContributors;
  return problem;
}

using Parameters = std::tuple<std::uint32_t, std::string, DataType>;

class Contributors : public ::testing::TestWithParam<Parameters> {};

// Wires, selectors and scales take turns; put_back is drawn.
TEST_P(Contributors, DivideAsInTheReferenceOnEveryRank) {
  const auto [size, algorithm, type] = GetParam();
  const std::vector<std::string> wires = reference::wires(algorithm);
  const std::vector<double> scales = {1, 1, 65536, 0.5, 1000};
  const std::uint64_t cases = support::kSanitized ? wires.size() : 3 * wires.size();
  for (std::uint64_t number = 0; number < cases; ++number) {
    const std::uint64_t seed = 1 + number + 1000UL * size;
    reference::Case drawn = reference::random_case(seed, type, size, algorithm);
    Problem problem = over_contributors(drawn.problem);
    problem.options.wire = wires[number % wires.size()];
    problem.options.scale = scales[number % scales.size()];
    if (number % 3 == 0) {
      reference::choose_selector(problem.options, problem.d, "block");
    }
    InprocRanks ranks(size, uneven_network(seed));
    ASSERT_EQ(support::differs_from_reference(ranks, problem), "")
        << drawn.description << ", " << problem.options.wire << ", scale " << problem.options.scale;
    ASSERT_TRUE(ranks.close().empty()) << drawn.description;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Contributors,
                         ::testing::Combine(::testing::ValuesIn(kSizes),
                                            ::testing::Values("topk", "exact"),
                                            ::testing::ValuesIn(reference::kFloatingTypes)));

/// Of each rank the first `shared` entries, and `own` of its own; all are 8.
Problem overlapping(std::uint32_t size, std::uint64_t shared, std::uint64_t own) {
  Problem problem;
  problem.d = shared + own * size;
  problem.options.k = shared + own;
  problem.options.algorithm = "topk";
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    reference::Input input{reference::zeros(problem.type, problem.d),
                           reference::zeros(problem.type, problem.d)};
    for (std::uint64_t i = 0; i < problem.d; ++i) {
      if (i < shared || (i - shared) / own == rank) {
        reference::store(problem.type, input.gradient, i, 8);
      }
    }
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

TEST(ContributorsMean, OverlappingLists_DividesByContributors) {
  for (const std::uint32_t size : kSizes) {
    const Problem problem = over_contributors(overlapping(size, 3, 2));
    InprocRanks ranks(size, uneven_network(size));
    ASSERT_EQ(support::differs_from_reference(ranks, problem), "");
    Tensor tensor = support::tensor_of(problem, 0);
    tensor.values = reference::all_reduce(problem).tensor;
    for (std::uint64_t i = 0; i < problem.d; ++i) {
      EXPECT_EQ(reference::load(problem.type, tensor.values, i), 8) << "P=" << size << " at " << i;
    }
  }
}

std::vector<std::uint64_t> bytes_sent(const Problem& problem) {
  const auto size = static_cast<std::uint32_t>(problem.ranks.size());
  InprocRanks ranks(size, uneven_network(size));
  EXPECT_EQ(support::differs_from_reference(ranks, problem), "");
  std::vector<std::uint64_t> bytes;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    bytes.push_back(ranks.group(rank)->metrics.read().bytes_sent);
  }
  return bytes;
}

// Of two ranks nobody sends a merged list, and of no number of them anybody sends more messages.
TEST(ContributorsCounts, AreAllThatIsAddedOnEveryWire) {
  for (const std::uint32_t size : kSizes) {
    for (const char* const algorithm : {"topk", "exact"}) {
      for (const std::string& wire : reference::wires(algorithm)) {
        const bool rounds = sparse::codec_registry().find(wire).codec.rounds();
        if (rounds && algorithm == std::string("topk")) {
          continue;  // counts may decide what is sent: forwarded_lists_test.cpp
        }
        Problem problem = overlapping(size, 90, 200);
        problem.options.wire = wire;
        problem.options.algorithm = algorithm;
        problem.options.op = ReduceOp::kAvg;
        const std::vector<std::uint64_t> without = bytes_sent(problem);
        problem.options.mean = MeanOver::kContributors;
        const std::vector<std::uint64_t> with = bytes_sent(problem);
        const reference::Outcome outcome = reference::all_reduce(problem);
        std::uint64_t all = 0;
        for (std::uint32_t rank = 0; rank < size; ++rank) {
          std::uint64_t counts = 0;
          for (const std::uint64_t each : outcome.lists[rank].counts_sent) {
            counts += each;
          }
          EXPECT_EQ(with[rank] - without[rank], counts)
              << algorithm << ", " << wire << ", P=" << size << " rank " << rank;
          all += counts;
        }
        EXPECT_EQ(all == 0, size == 1 || (size == 2 && algorithm == std::string("topk")));
      }
    }
  }
}

// A bit for each count of 1: of 290 entries none of which two ranks have, in two blocks.
TEST(ContributorsCounts, OfDisjointSelectionsAreABitEach) {
  const Problem problem = over_contributors(overlapping(4, 0, 145));
  const reference::Lists lists = reference::all_reduce(problem).lists[0];
  EXPECT_EQ(lists.sent, (std::vector<std::uint64_t>{145, 290}));
  EXPECT_EQ(lists.counts_sent, (std::vector<std::uint64_t>{0, 2 + 37}));
}

// The sums that a caller keeps are those of any other call.
TEST(ContributorsDelivered, AreSumsAndNotDivided) {
  const Problem problem = over_contributors(overlapping(3, 2, 1));
  InprocRanks ranks(3, uneven_network(1));
  std::vector<Tensor> tensors;
  std::vector<std::vector<std::int64_t>> indices(3, std::vector<std::int64_t>(5));
  std::vector<std::vector<float>> values(3, std::vector<float>(5));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    tensors.push_back(support::tensor_of(problem, rank));
  }
  const auto endings = ranks.run([&](std::uint32_t rank) {
    sparse::SparseCall call;
    call.tensor = tensors[rank].values.data();
    call.residual = tensors[rank].residual->data();
    call.d = problem.d;
    call.options = problem.options;
    call.delivered = {indices[rank].data(), values[rank].data(), 5};
    return sparse::collective(call);
  });
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
    EXPECT_EQ(indices[rank], (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
    EXPECT_EQ(values[rank], (std::vector<float>{24, 24, 8, 8, 8}));
  }
}

/// The error's text on every rank, where rank 1 calls something else.
std::vector<std::string> told(const Problem& problem, const Problem& other) {
  InprocRanks ranks(3, uneven_network(1));
  std::vector<Tensor> tensors;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    tensors.push_back(support::tensor_of(problem, rank));
  }
  const auto endings = ranks.run([&](std::uint32_t rank) {
    return support::sparse_all_reduce(rank == 1 ? other : problem, tensors[rank]);
  });
  std::vector<std::string> texts;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    texts.push_back(endings[rank]->text());
    EXPECT_EQ(tensors[rank].values, problem.ranks[rank].gradient);
  }
  EXPECT_EQ(support::group_works(ranks), "");
  return texts;
}

TEST(ContributorsMismatch, IsToldOnEveryRank) {
  Problem usual = overlapping(3, 4, 4);
  usual.options.op = ReduceOp::kAvg;
  for (const std::string& text : told(usual, over_contributors(usual))) {
    EXPECT_THAT(text, ::testing::HasSubstr("wire=lossless, mean=contributors)"));
    EXPECT_THAT(text, ::testing::HasSubstr("wire=lossless)"));
  }
}

// Whichever byte of it, in a list with counts or without, asked for or not.
TEST(ContributorsDamage, OfTheirNumberIsNoticed) {
  Problem problem = overlapping(4, 4, 40);
  for (const MeanOver mean : {MeanOver::kRanks, MeanOver::kContributors}) {
    problem.options.op = ReduceOp::kAvg;
    problem.options.mean = mean;
    for (const char* const wire : {"raw", "lossless", "2bit"}) {
      problem.options.wire = wire;
      for (std::uint64_t target = 0; target < 8; ++target) {
        for (std::int64_t byte = 0; byte < 8; ++byte) {
          EXPECT_THAT(support::refusal_of_a_flip(problem, target,
                                                 offsetof(collectives::Header, count_bytes) + byte),
                      ::testing::HasSubstr("damaged list"))
              << to_string(mean) << ", " << wire << ", message " << target << ", byte " << byte;
        }
      }
    }
  }
}

std::string refusal_of(const SparseOptions& options) {
  try {
    static_cast<void>(most_delivered(100, options, 2));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return {};
}

TEST(ContributorsArguments, ThatCannotBeMetAreRefused) {
  SparseOptions options{.k = 5, .algorithm = "topk", .mean = MeanOver::kContributors};
  EXPECT_EQ(refusal_of(options), "a mean over contributors needs ReduceOp AVG, seen SUM");
  options.op = ReduceOp::kAvg;
  EXPECT_EQ(refusal_of(options), "");
  for (const std::string& algorithm : reference::algorithms()) {
    options.algorithm = algorithm;
    const bool whole = algorithm == "topk" || algorithm == "exact";
    EXPECT_EQ(refusal_of(options),
              whole ? ""
                    : fmt::format("a mean over contributors needs whole sums of what ranks select, "
                                  "which '{}' does not deliver; algorithms that do: topk, exact",
                                  algorithm));
  }
  options.mean = MeanOver{7};
  EXPECT_EQ(refusal_of(options), "there is no mean number 7");
  options.mean = MeanOver::kContributors;
  options.algorithm = "topk";
  EXPECT_THROW(static_cast<void>(exchange(Preselected{}, 100, options)), Error);
}

}  // namespace
}  // namespace gtopk
