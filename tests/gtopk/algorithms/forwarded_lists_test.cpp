// Sparse, algorithms: on a wire that rounds, `topk` sends a sum as the selections in it if
// that takes fewer bytes. Which of the two never shows in a result, and bytes are exactly the
// fewer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <string>
#include <tuple>
#include <vector>

#include "src/collectives/header.hpp"
#include "src/collectives/tree.hpp"
#include "src/engine/group.hpp"
#include "src/gtopk/algorithms/list_plan.hpp"
#include "src/gtopk/wire/codec.hpp"
#include "src/gtopk/wire/counts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using collectives::kHeaderBytes;
using collectives::Tree;
using reference::Problem;
using sparse::codec_registry;
using sparse::List;
using support::InprocRanks;
using support::uneven_network;
using transport::TagKind;
using transport::inproc::Fault;
using transport::inproc::Sent;

constexpr sparse::EntryType kType{DataType::kFloat32, 4};

/// Each rank has `shared` entries that all have, and `own` more, spread evenly.
Problem partly_shared(std::uint32_t size, std::uint64_t shared, std::uint64_t own) {
  Problem problem;
  problem.d = 16 * (shared + own * size);
  problem.options.k = shared + own;
  problem.options.algorithm = "topk";
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    reference::Input input{reference::zeros(problem.type, problem.d),
                           reference::zeros(problem.type, problem.d)};
    for (std::uint64_t i = 0; i < shared + own * size; ++i) {
      if (i < shared || (i - shared) % size == rank) {
        // Of three such numbers it shows in which order they were added.
        const auto number = static_cast<double>(10 * i + rank);
        reference::store(problem.type, input.gradient, 16 * i, 1 + number / 1003);
      }
    }
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

class OwnBuffers final : public sparse::BufferSource {
 public:
  std::span<std::byte> buffer(std::size_t bytes) override { return memory_.emplace_back(bytes); }

 private:
  std::list<std::vector<std::byte>> memory_;
};

/// Bytes of these entries, without a header.
std::size_t coded(const std::string& wire, const std::vector<std::uint32_t>& indices,
                  std::uint64_t d) {
  OwnBuffers buffers;
  const sparse::Codec& codec = codec_registry().find(wire).codec;
  List list = codec.make(kType, indices.size(), buffers);
  const auto output = list.output<float, std::uint32_t>();
  std::ranges::copy(indices, output.indices);
  std::fill_n(output.values, indices.size(), 1.0F);
  codec.close(kType, list, indices.size());
  return codec.encode(kType, list, d, buffers).size() - sparse::kFrontBytes;
}

/// What a rank holds during the walk: everything that the ranks [first, first + ranks) selected.
struct Node {
  std::uint32_t first = 0;
  std::uint32_t ranks = 1;
  bool selections_known = true;
};

/// The messages of `topk` on this wire, as docs/algorithms.md has them.
class MessagesOfTopk {
 public:
  MessagesOfTopk(const Problem& problem, std::uint64_t shared)
      : problem_(problem), shared_(shared) {}

  /// Bytes that each rank sends.
  std::vector<std::uint64_t> bytes() {
    const auto size = static_cast<std::uint32_t>(problem_.ranks.size());
    const Tree tree(size);
    std::vector<std::uint64_t> sent(size);
    std::vector<Node> nodes(size);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      nodes[rank].first = rank;
      if (tree.folded_away(rank)) {
        sent[rank] += message(nodes[rank]);
        nodes[rank - 1].ranks = 2;
      }
    }
    for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
      std::vector<Node> wider = nodes;
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        if (tree.folded_away(rank)) {
          continue;
        }
        const Node& mine = nodes[rank];
        const Node& theirs = nodes[tree.partner(rank, round)];
        sent[rank] += message(mine);
        wider[rank] = {std::min(mine.first, theirs.first), mine.ranks + theirs.ranks,
                       mine.selections_known && forwards(theirs)};
      }
      nodes = wider;
    }
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      if (tree.folds(rank) && !tree.folded_away(rank)) {
        sent[rank] += message(nodes[rank]);
      }
    }
    return sent;
  }

  /// Sums that were sent as such, and as selections.
  std::uint64_t sums = 0;
  std::uint64_t selections = 0;

 private:
  std::vector<std::uint32_t> indices(std::uint32_t first, std::uint32_t ranks) const {
    const auto size = static_cast<std::uint32_t>(problem_.ranks.size());
    std::vector<std::uint32_t> found;
    for (std::uint64_t i = 0; i < problem_.d / 16; ++i) {
      const std::uint64_t owner = i < shared_ ? first : (i - shared_) % size;
      if (owner >= first && owner < first + ranks) {
        found.push_back(static_cast<std::uint32_t>(16 * i));
      }
    }
    return found;
  }
  std::size_t as_sum(const Node& node) const {
    const std::vector<std::uint32_t> all = indices(node.first, node.ranks);
    std::vector<std::byte> code(sparse::counts::capacity_for(all.size(), 8));
    sparse::GrowingBuffer scratch;
    std::vector<std::uint32_t> counts(all.size(), 1);
    std::fill_n(counts.begin(), shared_, node.ranks);
    const bool counted = problem_.options.mean == MeanOver::kContributors;
    return kHeaderBytes + coded("lossless", all, problem_.d) +
           (counted ? sparse::counts::encode(counts.data(), all.size(), scratch, code.data()) : 0);
  }
  std::size_t as_selections(const Node& node) const {
    std::size_t bytes = kHeaderBytes;
    for (std::uint32_t rank = node.first; rank < node.first + node.ranks; ++rank) {
      bytes += 16 + (coded(problem_.options.wire, indices(rank, 1), problem_.d) + 7) / 8 * 8;
    }
    return bytes;
  }
  bool forwards(const Node& node) const {
    return node.ranks == 1 || (node.selections_known && as_selections(node) < as_sum(node));
  }
  std::size_t message(const Node& node) {
    if (node.ranks == 1) {
      return kHeaderBytes + coded(problem_.options.wire, indices(node.first, 1), problem_.d);
    }
    ++(forwards(node) ? selections : sums);
    return forwards(node) ? as_selections(node) : as_sum(node);
  }

  const Problem& problem_;
  std::uint64_t shared_;
};

class Forwarded : public ::testing::TestWithParam<std::tuple<std::string, MeanOver>> {};

// Among few ranks whose selections differ all are forwarded, among many alike ones sums are sent.
TEST_P(Forwarded, BytesOfEveryRankAreThoseOfThePage) {
  const auto [wire, mean] = GetParam();
  std::uint64_t sums = 0;
  std::uint64_t selections = 0;
  for (const std::uint32_t size : {1U, 2U, 3U, 4U, 5U, 7U, 8U, 16U}) {
    for (const std::uint64_t shared : {0U, 150U, 300U}) {
      Problem problem = partly_shared(size, shared, 300 - shared);
      problem.options.wire = wire;
      problem.options.op = ReduceOp::kAvg;
      problem.options.mean = mean;
      MessagesOfTopk expected(problem, shared);
      const std::vector<std::uint64_t> bytes = expected.bytes();
      InprocRanks ranks(size, uneven_network(size));
      ASSERT_EQ(support::differs_from_reference(ranks, problem), "") << "P=" << size;
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        EXPECT_EQ(ranks.group(rank)->metrics.read().bytes_sent, bytes[rank])
            << shared << " of 300 entries are shared, P=" << size << ", rank " << rank;
      }
      sums += expected.sums;
      selections += expected.selections;
    }
  }
  EXPECT_GT(sums, 0U);
  EXPECT_GT(selections, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Every, Forwarded,
    ::testing::Combine(::testing::Values("bf16", "fp16", "int8", "4bit", "2bit", "ternary", "sign"),
                       ::testing::Values(MeanOver::kRanks, MeanOver::kContributors)));

// The number of selections, and the entries and bytes of the first: whichever byte of them.
TEST(ForwardedDamage, OfTheirSizesIsNoticed) {
  Problem problem = partly_shared(4, 0, 40);
  problem.options.wire = "2bit";
  const std::uint64_t last = 7;  // of eight messages: a rank's second
  for (std::size_t byte = 0; byte < 8; ++byte) {
    for (const std::size_t field :
         {offsetof(collectives::Header, count), kHeaderBytes, kHeaderBytes + 8}) {
      EXPECT_THAT(support::refusal_of_a_flip(problem, last, field + byte),
                  ::testing::HasSubstr("damaged list"))
          << "byte " << field + byte;
    }
  }
}

}  // namespace
}  // namespace gtopk
