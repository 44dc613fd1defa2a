// Engine: many operations at once: more than fit in flight, in overlapping groups, behind barriers,
// and point-to-point transfers in order.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>

#include <fmt/format.h>

#include "gtopk/gate.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using reference::one_of;
using support::InprocRanks;
using support::SharedEnding;
using transport::inproc::FabricOptions;

FabricOptions late_by_30us(std::uint64_t seed) {
  return support::network(seed, std::chrono::microseconds(30));
}

TEST(InFlight, AHundredCollectivesOfOneGroupAllEndRight) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const std::uint32_t size = 2 + static_cast<std::uint32_t>(seed);
    constexpr std::uint64_t kOperations = 100;
    InprocRanks ranks(size, late_by_30us(seed));
    std::vector<std::vector<std::int64_t>> values(size, std::vector<std::int64_t>(kOperations));
    std::vector<SharedEnding> endings;
    for (std::uint64_t operation = 0; operation < kOperations; ++operation) {
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        values[rank][operation] = static_cast<std::int64_t>(1000 * operation + rank);
        endings.push_back(ranks.submit(rank, gtopk::all_reduce(&values[rank][operation], 1,
                                                               DataType::kInt64, ReduceOp::kMax)));
      }
    }
    ranks.run_all();
    for (const SharedEnding& ending : endings) {
      ASSERT_TRUE(ending->good()) << ending->text();
    }
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (std::uint64_t operation = 0; operation < kOperations; ++operation) {
        ASSERT_EQ(values[rank][operation], static_cast<std::int64_t>(1000 * operation + size - 1));
      }
      const std::uint64_t most = ranks.group(rank)->metrics.count(Metric::kMostInFlight);
      EXPECT_GT(most, 1U);
      EXPECT_LE(most, engine::Engine::kMaxInFlight);
      EXPECT_EQ(ranks.group(rank)->in_flight(), 0U);
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(InFlight, DifferentProblemsAtOnceEachEqualTheReference) {
  for (std::uint64_t seed = 0; seed < support::seeds(10); ++seed) {
    const std::uint32_t size = 2 + seed % 6;
    InprocRanks ranks(size, late_by_30us(seed));
    std::vector<reference::Problem> problems;
    for (std::uint64_t number = 0; number < 40; ++number) {
      problems.push_back(reference::random_case(1000 * seed + number,
                                                one_of(reference::kFloatingTypes, number), size,
                                                one_of(reference::algorithms(), number / 4))
                             .problem);
    }
    std::vector<std::vector<support::Tensor>> tensors(size);
    std::vector<SharedEnding> endings;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (const auto& problem : problems) {
        tensors[rank].push_back(support::tensor_of(problem, rank));
      }
      for (std::size_t number = 0; number < problems.size(); ++number) {
        endings.push_back(ranks.submit(
            rank, support::sparse_all_reduce(problems[number], tensors[rank][number])));
      }
    }
    ranks.run_all();
    for (const SharedEnding& ending : endings) {
      ASSERT_TRUE(ending->good()) << ending->text();
    }
    for (std::size_t number = 0; number < problems.size(); ++number) {
      const reference::Outcome expected = reference::all_reduce(problems[number]);
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        ASSERT_EQ(reference::difference(problems[number].type, expected.tensor,
                                        tensors[rank][number].values),
                  "")
            << "seed " << seed << " problem " << number << " rank " << rank;
        ASSERT_TRUE(tensors[rank][number].residual == expected.residuals[rank]);
      }
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

// Long lists have the links to themselves, in call order; short ones overtake them.
TEST(InFlight, LongListsTakeTurns) {
  constexpr std::uint64_t kLong = 3000;  // entries; of 8 bytes each
  bool passed_by = false;
  for (std::uint64_t seed = 0; seed < support::seeds(12); ++seed) {
    const std::uint32_t size = 2 + seed % 7;
    SCOPED_TRACE(fmt::format("P={} seed {}", size, seed));
    reference::Random random(seed);
    InprocRanks ranks(size, late_by_30us(seed));
    std::vector<reference::Problem> problems(10);
    for (std::size_t number = 0; number < problems.size(); ++number) {
      reference::Problem& problem = problems[number];
      problem.d = 3 * kLong;
      problem.options.k = number % 3 == 2 ? 20 : kLong;
      problem.options.wire = "raw";
      problem.options.algorithm = reference::algorithms()[number % 3];  // not dense
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        reference::Input input{reference::zeros(problem.type, problem.d), std::nullopt};
        for (std::uint64_t i = 0; i < problem.d; ++i) {
          reference::store(problem.type, input.gradient, i, random.uniform() - 0.5);
        }
        problem.ranks.push_back(std::move(input));
      }
    }
    std::vector<std::vector<support::Tensor>> tensors(size);
    std::vector<std::vector<SharedEnding>> endings(size);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (const auto& problem : problems) {
        tensors[rank].push_back(support::tensor_of(problem, rank));
      }
      for (std::size_t number = 0; number < problems.size(); ++number) {
        endings[rank].push_back(ranks.submit(
            rank, support::sparse_all_reduce(problems[number], tensors[rank][number])));
      }
    }
    std::size_t left = problems.size() * size;
    std::vector<std::vector<std::size_t>> order(size);
    ranks.run_until([&] {
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        for (std::size_t number = 0; number < problems.size(); ++number) {
          if (endings[rank][number] == nullptr || !endings[rank][number]->ended) {
            continue;
          }
          EXPECT_TRUE(endings[rank][number]->good()) << endings[rank][number]->text();
          endings[rank][number] = nullptr;
          order[rank].push_back(number);
          --left;
        }
      }
      return left == 0;
    });
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      passed_by |= !std::ranges::is_sorted(order[rank]);
      std::erase_if(order[rank], [](std::size_t number) { return number % 3 == 2; });
      EXPECT_TRUE(std::ranges::is_sorted(order[rank])) << "rank " << rank;
    }
    for (std::size_t number = 0; number < problems.size(); ++number) {
      const reference::Outcome expected = reference::all_reduce(problems[number]);
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        ASSERT_EQ(reference::difference(problems[number].type, expected.tensor,
                                        tensors[rank][number].values),
                  "")
            << "problem " << number << " rank " << rank;
      }
    }
    EXPECT_TRUE(ranks.close().empty());
  }
  EXPECT_TRUE(passed_by);
}

TEST(InFlight, GroupsThatOverlapDoNotMixTheirMessages) {
  const std::vector<std::vector<std::uint32_t>> members = {
      {0, 1, 2}, {3, 2, 1}, {0, 3}, {2, 0, 1, 3}};
  for (std::uint64_t seed = 0; seed < support::seeds(10); ++seed) {
    InprocRanks ranks(4, late_by_30us(seed));
    std::vector<std::vector<std::shared_ptr<engine::Group>>> groups;
    for (std::uint32_t id = 0; id < members.size(); ++id) {
      groups.push_back(ranks.make_group(fmt::format("g{}", id), members[id]));
    }
    struct Value {
      std::int64_t value;
      std::int64_t expected;
    };
    std::deque<Value> values;
    std::vector<SharedEnding> endings;
    for (std::int64_t number = 0; number < 60; ++number) {
      const auto which = static_cast<std::size_t>(ranks.fabric().pick(members.size()));
      const auto size = static_cast<std::int64_t>(members[which].size());
      for (std::int64_t place = 0; place < size; ++place) {
        values.push_back({number * 100 + place, number * 100 * size + size * (size - 1) / 2});
        const auto at = static_cast<std::size_t>(place);
        endings.push_back(
            ranks.submit(members[which][at], groups[which][at],
                         gtopk::all_reduce(&values.back().value, 1, DataType::kInt64)));
      }
    }
    ranks.run_all();
    for (const SharedEnding& ending : endings) {
      ASSERT_TRUE(ending->good()) << ending->text();
    }
    for (const Value& value : values) {
      ASSERT_EQ(value.value, value.expected);
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(Barrier, EndsAfterEverythingThatWasCalledBeforeIt) {
  for (std::uint64_t seed = 0; seed < support::seeds(10); ++seed) {
    const std::uint32_t size = 2 + seed % 4;
    InprocRanks ranks(size, late_by_30us(seed));
    std::vector<std::vector<std::int64_t>> values(size, std::vector<std::int64_t>(50, 1));
    std::vector<std::vector<SharedEnding>> earlier(size);
    std::vector<SharedEnding> barriers;
    std::vector<SharedEnding> later;
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (std::int64_t& value : values[rank]) {
        earlier[rank].push_back(ranks.submit(rank, gtopk::all_reduce(&value, 1, DataType::kInt64)));
      }
      barriers.push_back(ranks.submit(rank, gtopk::barrier()));
      later.push_back(ranks.submit(rank, gtopk::barrier()));
    }
    ranks.run_until([&] {
      for (std::uint32_t rank = 0; rank < size; ++rank) {
        if (!barriers[rank]->ended) {
          continue;
        }
        for (const auto& of_rank : earlier) {
          for (const SharedEnding& ending : of_rank) {
            EXPECT_TRUE(ending->ended);
          }
        }
      }
      return HasFailure() ||
             std::ranges::all_of(later, [](const auto& ending) { return ending->ended; });
    });
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      for (const SharedEnding& ending : earlier[rank]) {
        ASSERT_TRUE(ending->good()) << ending->text();
      }
      ASSERT_TRUE(barriers[rank]->good()) << barriers[rank]->text();
      ASSERT_TRUE(later[rank]->good()) << later[rank]->text();
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

// Else a program that calls barrier() before it shuts a gate would wait for itself.
TEST(Barrier, DoesNotWaitForOperationsAtAGate) {
  InprocRanks ranks(3, late_by_30us(1));
  reference::Problem problem = reference::random_case(1, DataType::kFloat32, 3, "gtopk").problem;
  std::vector<std::shared_ptr<Gate>> gates;
  std::vector<support::Tensor> tensors;
  std::vector<SharedEnding> parts;
  std::vector<SharedEnding> barriers;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    tensors.push_back(support::tensor_of(problem, rank));
  }
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    gates.push_back(std::make_shared<Gate>(2));
    problem.options.gate = gates.back();
    parts.push_back(ranks.submit(rank, support::sparse_all_reduce(problem, tensors[rank])));
    barriers.push_back(ranks.submit(rank, gtopk::barrier()));
  }
  ranks.run_for(std::chrono::seconds(1));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(barriers[rank]->good()) << barriers[rank]->text();
    EXPECT_FALSE(parts[rank]->ended);
    EXPECT_FALSE(gates[rank]->shut());
  }
  ranks.run_all();
  for (const SharedEnding& ending : parts) {
    EXPECT_TRUE(ending->good()) << ending->text();
  }
  EXPECT_TRUE(ranks.close().empty());
}

TEST(PointToPoint, MessagesOfOneTagArriveInTheOrderOfTheirSends) {
  for (std::uint64_t seed = 0; seed < support::seeds(20); ++seed) {
    InprocRanks ranks(3, late_by_30us(seed));
    constexpr std::size_t kMessages = 30;
    std::vector<reference::Bytes> sent;
    std::vector<reference::Bytes> received;
    for (std::size_t number = 0; number < kMessages; ++number) {
      const std::size_t bytes = 1 + ranks.fabric().pick(3000);  // some eager, some rendezvous
      sent.emplace_back(bytes, static_cast<std::byte>(number));
      received.emplace_back(bytes);
    }
    std::vector<SharedEnding> endings;
    for (std::size_t number = 0; number < kMessages; ++number) {
      const auto tag = static_cast<std::int32_t>(number % 3) - 1;  // any 32 bits: -1, 0, 1
      endings.push_back(ranks.submit(0, gtopk::send(sent[number], 1, tag)));
      if (number % 5 == 0) {
        ranks.run_for(std::chrono::microseconds(50));
      }
    }
    for (std::size_t number = 0; number < kMessages; ++number) {
      const auto tag = static_cast<std::int32_t>(number % 3) - 1;
      endings.push_back(ranks.submit(1, gtopk::recv(received[number], 0, tag)));
    }
    ranks.run_all();
    for (const SharedEnding& ending : endings) {
      ASSERT_TRUE(ending->good()) << ending->text();
    }
    EXPECT_TRUE(sent == received);
    EXPECT_TRUE(ranks.close().empty());
  }
}

TEST(PointToPoint, ANotFittingMessageFailsItsReceiveAlone) {
  InprocRanks ranks(2);
  reference::Bytes large(100);
  reference::Bytes small(10);
  const SharedEnding sent = ranks.submit(0, gtopk::send(large, 1, 5));
  const SharedEnding received = ranks.submit(1, gtopk::recv(small, 0, 5));
  const SharedEnding sent_small = ranks.submit(0, gtopk::send(small, 1, 6));
  const SharedEnding received_large = ranks.submit(1, gtopk::recv(large, 0, 6));
  ranks.run_all();
  EXPECT_TRUE(sent->good() && sent_small->good());
  for (const SharedEnding& ending : {received, received_large}) {
    ASSERT_TRUE(ending->error.has_value());
    EXPECT_EQ(ending->error->kind(), ErrorKind::kMismatch);
    EXPECT_NE(ending->text().find("rank 0 (host node0"), std::string::npos) << ending->text();
  }
  EXPECT_EQ(support::group_works(ranks), "");
  EXPECT_TRUE(ranks.close().empty());
}

// Sequence numbers have 16 bits in a tag and 64 in a header.
TEST(Sequence, GoesOnBeyondWhatATagHolds) {
  InprocRanks ranks(2, {.seed = 1, .eager_below = std::numeric_limits<std::size_t>::max()});
  for (std::uint32_t batch = 0; batch < 66; ++batch) {
    std::vector<SharedEnding> endings;
    for (std::uint32_t number = 0; number < 1000; ++number) {
      for (std::uint32_t rank = 0; rank < 2; ++rank) {
        endings.push_back(ranks.submit(rank, gtopk::barrier()));
      }
    }
    ranks.run_all();
    for (const SharedEnding& ending : endings) {
      ASSERT_TRUE(ending->good()) << ending->text();
    }
  }
  EXPECT_EQ(support::group_works(ranks), "");
  EXPECT_TRUE(ranks.close().empty());
}

}  // namespace
}  // namespace gtopk
