// Collectives: the same results whichever way they go, errors instead of hangs where ranks differ,
// and the choice between ways.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/collectives/all_reduce.hpp"
#include "src/collectives/direct.hpp"
#include "src/collectives/path_costs.hpp"
#include "tests/collectives/definitions.hpp"
#include "tests/collectives/parts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"

namespace gtopk {
namespace {

using collectives::KnownPaths;
using collectives::PathCosts;
using collectives::PathSetting;
using collectives::Tree;
using support::InprocRanks;
using test::buffers;
using test::expect_good;
using test::Sizes;
using test::spans;
using test::total;

KnownPaths& known(InprocRanks& ranks, std::uint32_t rank) {
  return ranks.group(rank)->per_group_state.of<KnownPaths>();
}

void set_all(InprocRanks& ranks, PathSetting setting) {
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    known(ranks, rank).setting = setting;
  }
}

std::vector<reference::Bytes> random_inputs(std::uint32_t ranks, std::uint64_t d, DataType type,
                                            std::uint64_t seed) {
  reference::Random random(seed);
  std::vector<reference::Bytes> inputs;
  while (inputs.size() < ranks) {
    inputs.push_back(test::random_elements(random, d, type));
  }
  return inputs;
}

class EitherWay : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  static constexpr std::array kSettings = {PathSetting::kTree, PathSetting::kDirect};
  const std::uint32_t size_ = GetParam();
};

TEST_P(EitherWay, AllReduceIsItsDefinition) {
  const std::vector<std::pair<DataType, ReduceOp>> kinds = {
      {DataType::kFloat32, ReduceOp::kSum},       {DataType::kFloat64, ReduceOp::kAvg},
      {DataType::kBfloat16, ReduceOp::kAvg},      {DataType::kFloat32, ReduceOp::kPremulSum},
      {DataType::kComplex64, ReduceOp::kProduct}, {DataType::kInt8, ReduceOp::kMax}};
  std::uint64_t seed = 1;
  for (const PathSetting setting : kSettings) {
    for (const std::uint64_t bytes : {8UL, 1000UL, 65536UL}) {
      for (const auto& [type, op] : kinds) {
        const std::uint64_t d = bytes / size_of(type);
        SCOPED_TRACE(fmt::format("P={} d={} {} {} seed {}", size_, d, to_string(type),
                                 to_string(op), ++seed));
        std::vector<reference::Bytes> data = random_inputs(size_, d, type, seed);
        const reference::Bytes expected =
            test::defined_all_reduce(test::multiplied(data, type, op), d, type, op);
        InprocRanks ranks(size_, support::uneven_network(seed));
        set_all(ranks, setting);
        expect_good(ranks.run([&, type = type, op = op](std::uint32_t rank) {
          return gtopk::all_reduce(data[rank].data(), d, type, op, test::factor_of(rank, op));
        }));
        for (const reference::Bytes& bits : data) {
          ASSERT_TRUE(bits == expected);
        }
        ASSERT_TRUE(ranks.close().empty());
      }
    }
  }
}

TEST_P(EitherWay, ReduceScatterIsItsDefinitionForEveryLayout) {
  constexpr DataType kType = DataType::kBfloat16;
  std::uint64_t seed = 1;
  for (const PathSetting setting : kSettings) {
    for (const ReduceOp op : {ReduceOp::kAvg, ReduceOp::kPremulSum}) {
      for (const Sizes& sizes : test::layouts(size_, 500)) {
        SCOPED_TRACE(fmt::format("P={} {} seed {}", size_, to_string(op), ++seed));
        std::vector<reference::Bytes> inputs = random_inputs(size_, total(sizes), kType, seed);
        const std::vector<reference::Bytes> untouched = inputs;
        const reference::Bytes sum =
            test::defined_all_reduce(test::multiplied(inputs, kType, op), total(sizes), kType, op);
        std::vector<reference::Bytes> outputs;
        for (const std::uint64_t part : sizes) {
          outputs.emplace_back(part * size_of(kType));
        }
        InprocRanks ranks(size_, support::uneven_network(seed));
        set_all(ranks, setting);
        expect_good(ranks.run([&, op = op](std::uint32_t rank) {
          return gtopk::reduce_scatter(buffers(inputs[rank], sizes, kType),
                                       {outputs[rank].data(), sizes[rank], kType}, op,
                                       test::factor_of(rank, op));
        }));
        for (std::uint32_t rank = 0; rank < size_; ++rank) {
          const auto begin =
              sum.begin() + static_cast<std::ptrdiff_t>(test::before(sizes, rank) * size_of(kType));
          ASSERT_TRUE(std::equal(outputs[rank].begin(), outputs[rank].end(), begin));
          ASSERT_TRUE(inputs[rank] == untouched[rank]);
        }
        ASSERT_TRUE(ranks.close().empty());
      }
    }
  }
}

TEST_P(EitherWay, AllGatherAndBroadcastBringEveryByte) {
  for (const PathSetting setting : kSettings) {
    for (const Sizes& sizes : test::layouts(size_, 3000)) {
      reference::Bytes expected(total(sizes));
      std::iota(reinterpret_cast<unsigned char*>(expected.data()),
                reinterpret_cast<unsigned char*>(expected.data()) + expected.size(), 1);
      std::vector<reference::Bytes> data(size_, reference::Bytes(expected.size()));
      InprocRanks ranks(size_, support::uneven_network(sizes[0]));
      set_all(ranks, setting);
      expect_good(ranks.run([&](std::uint32_t rank) {
        std::copy_n(expected.begin() + static_cast<std::ptrdiff_t>(test::before(sizes, rank)),
                    sizes[rank], spans(data[rank], sizes)[rank].begin());
        return gtopk::all_gather(spans(data[rank], sizes));
      }));
      for (const reference::Bytes& bytes : data) {
        ASSERT_TRUE(bytes == expected);
      }
      for (const std::size_t bytes : {100UL, kShortBroadcast, 9 * kShortBroadcast}) {
        const reference::Bytes sent(bytes, std::byte{7});
        for (std::uint32_t root = 0; root < size_; ++root) {
          std::vector<reference::Bytes> copies(size_, reference::Bytes(bytes));
          copies[root] = sent;
          expect_good(
              ranks.run([&](std::uint32_t rank) { return gtopk::broadcast(copies[rank], root); }));
          for (const reference::Bytes& copy : copies) {
            ASSERT_TRUE(copy == sent) << "root " << root << " " << bytes;
          }
        }
      }
      ASSERT_TRUE(ranks.close().empty());
    }
  }
}

/// Calls of which no two are the same.
std::vector<std::function<Collective(reference::Bytes&)>> different_calls(std::uint32_t ranks) {
  const auto reducing = [](std::uint64_t d) {
    return [d](reference::Bytes& data) {
      return gtopk::all_reduce(data.data(), d, DataType::kFloat32);
    };
  };
  const auto gathering = [ranks](std::uint64_t bytes) {
    return
        [=](reference::Bytes& data) { return gtopk::all_gather(spans(data, Sizes(ranks, bytes))); };
  };
  std::vector<std::function<Collective(reference::Bytes&)>> calls = {
      reducing(500),
      reducing(20'000),
      [ranks](reference::Bytes& data) {
        const Buffers parts = buffers(data, Sizes(ranks, 100), DataType::kFloat32);
        return gtopk::reduce_scatter(parts, parts[0]);
      },
      gathering(2'000),
      gathering(20'000),
      [](reference::Bytes& data) { return gtopk::broadcast(std::span(data).first(2000), 0); },
      [](reference::Bytes& data) { return gtopk::broadcast(data, 0); },
      [ranks](reference::Bytes& data) {
        const auto parts = spans(data, Sizes(ranks, 8));
        return gtopk::all_to_all(test::constant(parts), parts);
      },
      [](reference::Bytes&) { return gtopk::barrier(); }};
  for (const std::string& algorithm : reference::algorithms()) {
    calls.emplace_back([algorithm](reference::Bytes& data) {
      sparse::SparseCall call;
      call.tensor = data.data();
      call.d = 100;
      call.dtype = DataType::kFloat32;
      call.options.k = 20;
      call.options.algorithm = algorithm;
      return sparse::collective(call);
    });
  }
  return calls;
}

/// Those that have two ways.
constexpr std::size_t kReducing = 0;
constexpr std::size_t kScattering = 2;
constexpr std::size_t kGathering = 3;
constexpr std::size_t kBroadcastingFew = 5;
constexpr std::size_t kBroadcasting = 6;
constexpr std::array kChoosing = {kReducing, kScattering, kGathering, kBroadcastingFew,
                                  kBroadcasting};

// A rank that goes directly sends to every other what that one waits for first, whatever it called.
TEST_P(EitherWay, RanksThatCallDifferentThingsGetAnError) {
  if (size_ == 1) {
    return;
  }
  const auto calls = different_calls(size_);
  for (std::size_t usual = 0; usual < calls.size(); ++usual) {
    for (std::size_t odd = 0; odd < calls.size(); ++odd) {
      if (usual == odd) {
        continue;
      }
      const auto odd_rank = static_cast<std::uint32_t>((usual + odd) % size_);
      SCOPED_TRACE(
          fmt::format("P={}, rank {} calls {}, the others {}", size_, odd_rank, odd, usual));
      std::vector<reference::Bytes> memory(size_, reference::Bytes(200'000));
      InprocRanks ranks(size_, support::uneven_network(usual * 16 + odd));
      set_all(ranks, PathSetting::kDirect);
      for (const auto& ending : ranks.run([&](std::uint32_t rank) {
             return calls[rank == odd_rank ? odd : usual](memory[rank]);
           })) {
        ASSERT_TRUE(ending->ended);
        ASSERT_TRUE(ending->error.has_value());
        ASSERT_EQ(ending->error->kind(), ErrorKind::kMismatch) << ending->text();
      }
      ASSERT_EQ(support::group_works(ranks), "");
      ASSERT_TRUE(ranks.close().empty());
    }
  }
}

TEST_P(EitherWay, RanksThatGoDifferentWaysGetAnErrorThatSaysSo) {
  if (size_ == 1) {
    return;
  }
  const auto calls = different_calls(size_);
  for (const std::size_t call : kChoosing) {
    if (size_ < 3 && (call == kReducing || call == kBroadcasting)) {
      continue;  // two ranks have one way
    }
    for (std::uint32_t odd = 0; odd < size_; ++odd) {
      SCOPED_TRACE(fmt::format("P={}, call {}, rank {} goes directly", size_, call, odd));
      std::vector<reference::Bytes> memory(size_, reference::Bytes(200'000));
      std::vector<std::string> hosts;
      for (std::uint32_t rank = 0; rank < size_; ++rank) {
        hosts.push_back(fmt::format("host {}", rank));
      }
      InprocRanks ranks(size_, support::uneven_network(odd), hosts);
      set_all(ranks, PathSetting::kTree);
      known(ranks, odd).setting = PathSetting::kDirect;
      for (const auto& ending :
           ranks.run([&](std::uint32_t rank) { return calls[call](memory[rank]); })) {
        ASSERT_TRUE(ending->error.has_value());
        ASSERT_EQ(ending->error->kind(), ErrorKind::kMismatch) << ending->text();
        ASSERT_THAT(ending->text(), testing::HasSubstr("GTOPK_DENSE must be the same"));
      }
      set_all(ranks, PathSetting::kAuto);
      ASSERT_EQ(support::group_works(ranks), "");
      ASSERT_TRUE(ranks.close().empty());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, EitherWay, ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8));

TEST(DirectStep, IsThatOfTheTreeWhereItHasAMessage) {
  for (std::uint32_t size = 2; size <= 20; ++size) {
    const Tree tree(size);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      if (tree.folded_away(rank)) {
        EXPECT_EQ(collectives::direct_step(tree, rank, rank - 1), Tree::fold_step());
        EXPECT_EQ(collectives::direct_step(tree, rank - 1, rank), tree.unfold_step());
        continue;
      }
      for (std::uint32_t round = 0; round < tree.rounds(); ++round) {
        EXPECT_EQ(collectives::direct_step(tree, rank, tree.partner(rank, round)),
                  Tree::round_step(round));
      }
    }
  }
}

class ChosenPath : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kSize = 4;
  static constexpr std::uint64_t kElements = 4000;

  std::vector<support::SharedEnding> reduce(InprocRanks& ranks) {
    return ranks.run([&](std::uint32_t rank) {
      return gtopk::all_reduce(data_[rank].data(), kElements, DataType::kFloat32);
    });
  }
  static void spend(InprocRanks& ranks, std::uint64_t collectives) {
    for (std::uint64_t i = 0; i < collectives; ++i) {
      expect_good(ranks.run([](std::uint32_t) { return gtopk::barrier(); }));
    }
  }

  std::vector<reference::Bytes> data_{kSize, reference::Bytes(kElements * 4)};
};

TEST_F(ChosenPath, AfterEnoughCalls_UsesCostsKnownToEveryRank) {
  InprocRanks ranks(kSize, support::uneven_network(3));
  expect_good(reduce(ranks));
  EXPECT_FALSE(known(ranks, 0).measured);
  spend(ranks, KnownPaths::kMeasuredFrom - 3);
  expect_good(reduce(ranks));
  EXPECT_FALSE(known(ranks, 0).measured);
  expect_good(reduce(ranks));
  for (std::uint32_t rank = 0; rank < kSize; ++rank) {
    const collectives::PathCosts& first = known(ranks, 0).measured.value();
    const collectives::PathCosts& costs = known(ranks, rank).measured.value();
    EXPECT_EQ(costs.tree, first.tree);
    EXPECT_EQ(costs.direct, first.direct);
    EXPECT_EQ(costs.byte, first.byte);
  }
  ASSERT_TRUE(ranks.close().empty());
}

TEST_F(ChosenPath, CallsInFlightDuringMeasurement_Succeed) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    InprocRanks ranks(kSize, support::uneven_network(seed));
    spend(ranks, KnownPaths::kMeasuredFrom - 2);
    std::vector<support::SharedEnding> endings;
    std::vector<std::vector<reference::Bytes>> values(6, data_);
    for (std::vector<reference::Bytes>& each : values) {
      for (std::uint32_t rank = 0; rank < kSize; ++rank) {
        endings.push_back(
            ranks.submit(rank, engine::OperationSpec(gtopk::all_reduce(each[rank].data(), kElements,
                                                                       DataType::kFloat32))));
      }
    }
    ranks.run_all();
    expect_good(endings);
    EXPECT_TRUE(known(ranks, 0).measured);
    ASSERT_TRUE(ranks.close().empty());
  }
}

// How that comes about: a rank has measured and fails in the rest of the same operation, and its
// abort overtakes the last message of measuring elsewhere.
TEST_F(ChosenPath, CostsKnownToSomeRanks_FailOnceThenRemeasure) {
  constexpr PathCosts kTree{.tree = 1, .direct = 1e9, .byte = 1};
  constexpr PathCosts kDirect{.tree = 1e9, .direct = 1, .byte = 1};
  const std::vector<std::string> hosts = {"a", "a", "b", "b", "c", "c"};
  const auto size = static_cast<std::uint32_t>(hosts.size());
  const auto calls = different_calls(size);
  for (const std::size_t call : kChoosing) {
    if (call == kBroadcastingFew) {
      continue;  // six ranks have one way
    }
    for (const PathCosts& costs : {kTree, kDirect}) {
      for (std::uint32_t knowing = 1; knowing + 1 < 1U << size; knowing += 3) {
        SCOPED_TRACE(fmt::format("call {}, knowing {:b}, tree {}", call, knowing, costs.tree));
        std::vector<reference::Bytes> memory(size, reference::Bytes(200'000));
        const auto once = [&](std::uint32_t rank) { return calls[call](memory[rank]); };
        InprocRanks ranks(size, support::uneven_network(knowing), hosts);
        spend(ranks, KnownPaths::kMeasuredFrom - 1);
        for (std::uint32_t rank = 0; rank < size; ++rank) {
          if ((knowing >> rank & 1U) != 0) {
            known(ranks, rank).measured = costs;
          }
        }
        // Where the first two differ, which meet first, the last one may call too late to start.
        const bool late = ((knowing ^ knowing >> 1U) & 1U) != 0;
        std::vector<support::SharedEnding> endings;
        for (std::uint32_t rank = 0; rank < size; ++rank) {
          if (late && rank + 1 == size) {
            ranks.run_all();
          }
          endings.push_back(ranks.submit(rank, engine::OperationSpec(once(rank))));
        }
        ranks.run_all();
        for (const auto& ending : endings) {
          ASSERT_TRUE(ending->error.has_value());
          ASSERT_THAT(ending->text(), testing::HasSubstr("ranks take different paths"));
        }
        for (std::uint32_t rank = 0; rank < size; ++rank) {
          ASSERT_FALSE(known(ranks, rank).measured);
        }
        expect_good(ranks.run(once));
        ASSERT_TRUE(known(ranks, 0).measured);
        expect_good(ranks.run(once));
        ASSERT_TRUE(ranks.close().empty());
      }
    }
  }
}

/// Succeeds everywhere but on that rank, which fails when all others have ended.
Collective failing_on(std::uint32_t odd, ErrorKind kind) {
  Collective collective = gtopk::all_reduce(nullptr, 0, DataType::kFloat32);
  collective.body = [=](engine::GroupView& group) -> engine::Task<void> {
    return [](engine::GroupView& in, std::uint32_t to, ErrorKind cause) -> engine::Task<void> {
      co_await collectives::agree(in);
      const std::uint32_t step = Tree(in.size()).end_step();
      if (in.rank() != to) {
        engine::Message last = in.send(to, step, in.buffer(8));
        co_return;
      }
      for (std::uint32_t from = 0; from < in.size(); ++from) {
        if (from != to) {
          engine::Message message = in.recv(from, step, in.buffer(8));
          co_await message;
        }
      }
      throw Error(cause, "only here");
    }(group, odd, kind);
  };
  return collective;
}

TEST_F(ChosenPath, FailureOnOneRank_KeepsMeasuredCosts) {
  for (std::uint32_t odd = 0; odd < kSize; ++odd) {
    InprocRanks ranks(kSize, support::uneven_network(odd));
    spend(ranks, KnownPaths::kMeasuredFrom - 1);
    expect_good(reduce(ranks));
    for (const ErrorKind kind : {ErrorKind::kTimeout, ErrorKind::kMismatch}) {
      const auto endings = ranks.run([&](std::uint32_t /*rank*/) { return failing_on(odd, kind); });
      for (std::uint32_t rank = 0; rank < kSize; ++rank) {
        ASSERT_EQ(endings[rank]->error.has_value(), rank == odd) << endings[rank]->text();
      }
      expect_good(reduce(ranks));
    }
    // A call of something else is a mistake on one rank, too, from which the group goes on.
    for (const auto& ending : ranks.run([&](std::uint32_t rank) -> engine::OperationSpec {
           if (rank == odd) {
             return gtopk::barrier();
           }
           return gtopk::all_reduce(data_[rank].data(), kElements, DataType::kFloat32);
         })) {
      ASSERT_EQ(ending->error->kind(), ErrorKind::kMismatch) << ending->text();
    }
    expect_good(reduce(ranks));
    EXPECT_EQ(known(ranks, odd).measured_by, KnownPaths::kMeasuredFrom);
    ASSERT_TRUE(ranks.close().empty());
  }
}

}  // namespace
}  // namespace gtopk
