// Sparse, algorithms: several connections between two ranks: long lists and pieces of dense
// tensors are dealt to them, results stay what they are, and nobody loses what is on its way when a
// rank leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "src/collectives/all_reduce.hpp"
#include "src/collectives/header.hpp"
#include "src/gtopk/algorithms/parts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using reference::Problem;
using support::InprocRanks;
using support::SharedEnding;
using testing::HasSubstr;
using testing::IsEmpty;

/// Every rank selects exactly k.
Problem problem_of(std::uint32_t size, const std::string& algorithm, std::uint64_t k) {
  reference::Random random(size);
  Problem problem;
  problem.type = DataType::kFloat32;
  problem.d = 4 * k;
  problem.options.k = k;
  problem.options.algorithm = algorithm;
  problem.options.wire = "raw";
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    reference::Input input{reference::zeros(problem.type, problem.d), std::nullopt};
    for (std::uint64_t i = 0; i < problem.d; ++i) {
      reference::store(problem.type, input.gradient, i, 1.0 + random.uniform());
    }
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

std::vector<std::uint64_t> bytes_over(InprocRanks& ranks, std::uint32_t rank) {
  const auto& counters = ranks.fabric().counters(rank);
  const auto& all = counters.bytes_over;
  std::vector<std::uint64_t> bytes(all.begin(), all.begin() + ranks.fabric().options().connections);
  bytes.front() -= counters.of(transport::TagKind::kControl).bytes_sent;  // hellos
  return bytes;
}

constexpr std::uint64_t kLong = 5'000;  // a list of them takes 40,064 bytes

/// Written out, as the rule of parts_of() is short.
std::uint32_t expected_parts(std::size_t bytes, std::uint32_t connections) {
  if (bytes <= 16'384 || connections == 1) {
    return 1;
  }
  const auto of_128_kib = static_cast<std::uint32_t>((bytes + 131'071) / 131'072);
  const auto of_4_kib = static_cast<std::uint32_t>(bytes / 4'096);
  return std::min({std::max(connections, of_128_kib), of_4_kib, 128U});
}

TEST(Parts, FollowTheirRuleAndCoverTheMessageInOrder) {
  for (const std::size_t bytes :
       {std::size_t{0}, sparse::kAcknowledgedBytes, sparse::kAcknowledgedBytes + 1,
        std::size_t{20'001}, std::size_t{262'144}, std::size_t{262'143}, std::size_t{1} << 20U,
        std::size_t{9'999'999}, std::size_t{40'000'000}}) {
    for (std::uint32_t connections = 1; connections <= transport::kMostConnections; ++connections) {
      const std::vector<std::byte> whole(bytes);
      const std::uint32_t parts = sparse::parts_of(bytes, connections);
      EXPECT_EQ(parts, expected_parts(bytes, connections));
      const std::size_t each = sparse::part_bytes(bytes, parts);
      std::size_t covered = 0;
      for (std::uint32_t part = 0; part < parts; ++part) {
        const auto place = sparse::part_at(std::span(whole), each, part);
        EXPECT_EQ(place.data(), whole.data() + covered);
        EXPECT_EQ(place.empty(), bytes == 0);
        EXPECT_TRUE(part + 1 == parts || place.size() == each);
        covered += place.size();
      }
      EXPECT_EQ(covered, bytes);
    }
  }
}

TEST(Connections, EachCarriesItsPartOfEveryLongList) {
  constexpr std::uint64_t kBytes = collectives::kHeaderBytes + 8 * kLong;
  for (const std::uint32_t connections : {1U, 2U, 3U, 16U}) {
    InprocRanks ranks(4, {.seed = connections, .connections = connections});
    ASSERT_EQ(support::differs_from_reference(ranks, problem_of(4, "gtopk", kLong)), "");
    const std::uint32_t parts = expected_parts(kBytes, connections);
    const std::uint64_t part = sparse::part_bytes(kBytes, parts);
    // Two rounds, each to another rank, so both begin with the first connection.
    std::vector<std::uint64_t> expected(connections, 0);
    std::fill_n(expected.begin(), parts, 2 * part);
    expected.at(parts - 1) = 2 * (kBytes - (parts - 1) * part);
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(bytes_over(ranks, rank), expected);
      // As many messages as parts, and an acknowledgement of each list.
      EXPECT_EQ(ranks.group(rank)->metrics.read().messages_sent, 2 * parts + 2);
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(Connections, ShortListsTakeTheFirst) {
  InprocRanks ranks(4, {.seed = 1, .connections = 4});
  ASSERT_EQ(support::differs_from_reference(ranks, problem_of(4, "gtopk", 100)), "");
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(bytes_over(ranks, rank), (std::vector<std::uint64_t>{2UL * (64 + 800), 0, 0, 0}));
  }
}

TEST(Connections, NeverChangeAResult) {
  const std::uint32_t most = support::kSanitized ? 3 : 5;
  for (const auto& choice : algorithms()) {
    if (choice.name == "auto") {
      continue;  // measures links first, and then takes one of the others
    }
    for (std::uint32_t size = 2; size <= most; ++size) {
      for (const std::uint32_t connections : {2U, 5U}) {
        const auto eager =
            size % 2 == 0 ? std::size_t{1024} : std::numeric_limits<std::size_t>::max();
        InprocRanks ranks(size, {.seed = size, .eager_below = eager, .connections = connections});
        Problem problem = problem_of(size, std::string(choice.name), 2'100);
        problem.options.wire = size == 3 ? "lossless" : "raw";
        ASSERT_EQ(support::differs_from_reference(ranks, problem), "")
            << choice.name << " of " << size << " over " << connections;
        EXPECT_TRUE(ranks.close().empty());
      }
    }
  }
}

// Messages that share a tag may come in another order where they take different connections: those
// of one rank to another must each have their own (engine/group_view.hpp).
TEST(Connections, NoTwoMessagesOfACallShareATag) {
  const std::vector<std::uint32_t> sizes =
      support::kSanitized ? std::vector{2U, 3U} : std::vector{2U, 3U, 4U, 8U};
  for (const auto& choice : algorithms()) {
    if (choice.name == "auto") {
      continue;  // as above
    }
    for (const std::uint32_t size : sizes) {
      InprocRanks ranks(size, {.seed = size, .connections = 3});
      std::set<std::pair<std::uint32_t, transport::Tag>> sent;
      std::vector<std::string> repeated;
      ranks.fabric().set_faults([&](const transport::inproc::Sent& message) {
        const bool first = sent.emplace(message.destination, message.tag).second;
        if (transport::kind_of(message.tag) == transport::TagKind::kCollective && !first) {
          repeated.push_back(transport::describe(message.tag));
        }
        return transport::inproc::Fault{};
      });
      ASSERT_EQ(
          support::differs_from_reference(ranks, problem_of(size, std::string(choice.name), kLong)),
          "");
      EXPECT_THAT(repeated, IsEmpty()) << choice.name << " of " << size;
      EXPECT_TRUE(ranks.close().empty());
    }
  }
}

/// d elements of float32, summed by all.
std::vector<SharedEnding> reduce(InprocRanks& ranks, std::vector<std::vector<float>>& tensors) {
  return ranks.run([&](std::uint32_t rank) {
    return all_reduce(tensors[rank].data(), tensors[rank].size(), DataType::kFloat32);
  });
}

TEST(Connections, PiecesOfTheRingTakeThemByTurns) {
  constexpr std::size_t kPieces = 8;
  const std::size_t d = 2 * kPieces * collectives::kPieceBytes / sizeof(float);
  InprocRanks ranks(2, {.seed = 3, .connections = 4});
  std::vector<std::vector<float>> tensors(2, std::vector<float>(d, 1));
  for (const SharedEnding& ending : reduce(ranks, tensors)) {
    ASSERT_TRUE(ending->good()) << ending->text();
  }
  EXPECT_TRUE(std::ranges::all_of(tensors[0], [](float each) { return each == 2; }));
  EXPECT_EQ(tensors[0], tensors[1]);
  // Half of it there, and half back; the header by which ranks agree goes over the first.
  const std::uint64_t share = 2 * kPieces * collectives::kPieceBytes / 4;
  EXPECT_EQ(bytes_over(ranks, 0),
            (std::vector<std::uint64_t>{share + collectives::kHeaderBytes, share, share, share}));
}

// Its goodbye comes over every connection, as what it has sent before does.
TEST(Connections, ARankThatHasDoneItsPartMayLeave) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    InprocRanks ranks(3, {.seed = seed,
                          .eager_below = std::numeric_limits<std::size_t>::max(),
                          .max_delay = std::chrono::microseconds(300),
                          .connections = 4});
    const std::size_t bytes = 6 * collectives::kPieceBytes + 5;
    std::vector<std::vector<std::byte>> data(3, std::vector<std::byte>(bytes));
    std::fill(data[0].begin(), data[0].end(), std::byte{7});
    std::vector<SharedEnding> endings;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      endings.push_back(ranks.submit(rank, broadcast(data[rank], 0)));
    }
    ranks.run_until([&] { return endings[0]->ended; });
    ASSERT_TRUE(endings[0]->good()) << endings[0]->text();
    ranks.leave(0);
    ranks.run_all();
    for (const std::uint32_t rank : {1U, 2U}) {
      ASSERT_TRUE(endings[rank]->good()) << "seed " << seed << ": " << endings[rank]->text();
      EXPECT_EQ(data[rank], data[0]);
    }
  }
}

TEST(Connections, APartOfAnotherLengthIsAnErrorAndTheGroupWorksOn) {
  for (const std::size_t length : {0UL, 63UL, 13'439UL, 50'000UL}) {
    InprocRanks ranks(2, {.seed = 5, .connections = 3});
    auto done = std::make_shared<bool>(false);
    ranks.fabric().set_faults([done, length](const transport::inproc::Sent& sent) {
      transport::inproc::Fault fault;
      const bool second_part = (sent.tag & 0xffU) == 2;
      if (second_part && sent.source == 0 && !std::exchange(*done, true)) {
        fault.length = length;
      }
      return fault;
    });
    const Problem problem = problem_of(2, "gtopk", kLong);
    std::vector<support::Tensor> tensors{support::tensor_of(problem, 0),
                                         support::tensor_of(problem, 1)};
    const auto endings = ranks.run(
        [&](std::uint32_t rank) { return support::sparse_all_reduce(problem, tensors[rank]); });
    EXPECT_TRUE(*done);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      EXPECT_FALSE(endings[rank]->good());
      EXPECT_THAT(endings[rank]->text(), length > 13'376 ? HasSubstr("more than rank 1")
                                                         : HasSubstr("damaged list: part 1 of 3"));
      EXPECT_EQ(tensors[rank].values, problem.ranks[rank].gradient);
    }
    ranks.fabric().set_faults({});
    EXPECT_EQ(support::group_works(ranks), "");
    EXPECT_TRUE(ranks.close().empty());
  }
}

}  // namespace
}  // namespace gtopk
