// Sparse, algorithms: `dense` and `dense-placed` on wires that code blocks of values: the
// reference's bits on every rank, no mass lost, exactly the bytes of the page, and a step that is
// not finite leaves no trace.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/collectives/header.hpp"
#include "src/collectives/tree.hpp"
#include "src/engine/group.hpp"
#include "src/gtopk/algorithms/departure.hpp"
#include "src/gtopk/wire/codec.hpp"
#include "tests/reference/hosts.hpp"
#include "tests/reference/reference_parts.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using reference::Problem;
using support::InprocRanks;
using support::Tensor;
using support::uneven_network;

const std::vector<std::string> kWires = {"bf16", "fp16", "int8", "4bit", "2bit", "ternary", "sign"};

std::size_t block_of(const std::string& wire) { return reference::block_of(wire); }

/// Bell-shaped gradients and smaller residuals.
Problem problem_of(const std::string& wire, std::uint32_t ranks, DataType type, std::uint64_t d,
                   std::uint64_t seed) {
  reference::Random random(seed);
  Problem problem;
  problem.type = type;
  problem.d = d;
  problem.options.algorithm = "dense";
  problem.options.wire = wire;
  problem.options.op = seed % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAvg;
  const DataType acc_type = accumulation_type(type);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    reference::Input input{reference::zeros(type, d), std::nullopt};
    if ((seed + rank) % 3 != 0) {
      input.residual = reference::zeros(acc_type, d);
    }
    for (std::uint64_t i = 0; i < d; ++i) {
      reference::store(type, input.gradient, i,
                       random.uniform() + random.uniform() + random.uniform() - 1.5);
      if (input.residual) {
        reference::store(acc_type, *input.residual, i, 0.2 * random.uniform() - 0.1);
      }
    }
    problem.ranks.push_back(std::move(input));
  }
  return problem;
}

// Regions that are empty, of one block, and of a block that is cut short.
TEST(DenseCoded, AnyRanksTypeWireAndSize_MatchReferenceBits) {
  std::uint64_t seed = 0;
  for (const std::string& wire : kWires) {
    const std::uint64_t block = block_of(wire);
    for (std::uint32_t size = 1; size <= (support::kSanitized ? 4 : 8); ++size) {
      for (const std::uint64_t d :
           {std::uint64_t{1}, block - 1, block, block + 1, 2 * block, (size - 1) * block + 3,
            size * block, 7 * block + 5, std::uint64_t{3001}}) {
        if (d == 0) {
          continue;
        }
        const DataType type = reference::one_of(reference::kFloatingTypes, ++seed);
        InprocRanks ranks(size, uneven_network(seed));
        ASSERT_EQ(support::differs_from_reference(ranks, problem_of(wire, size, type, d, seed)), "")
            << wire << " " << to_string(type) << " P=" << size << " d=" << d;
        ASSERT_TRUE(ranks.close().empty());
      }
    }
  }
}

// Messages of more than 16 KiB, which are paced, in sweeps of another thread, and go in parts over
// several connections.
TEST(DenseCoded, GivesTheReferencesBitsWithLongMessages) {
  std::uint64_t seed = 100;
  for (const std::string& wire : {std::string("int8"), std::string("4bit")}) {
    for (const std::uint32_t size : {2U, 3U, 5U}) {
      if (support::kSanitized && size != 3) {
        continue;
      }
      for (const std::uint32_t connections : {1U, 3U, 8U}) {
        const Problem problem = problem_of(wire, size, DataType::kFloat32, 70'001UL * size, ++seed);
        auto network = uneven_network(seed);
        network.connections = connections;
        InprocRanks ranks(size, network);
        ASSERT_EQ(support::differs_from_reference(ranks, problem), "")
            << wire << " P=" << size << " over " << connections;
        const auto& bytes = ranks.fabric().counters(0).bytes_over;
        EXPECT_GT(bytes.at(connections - 1), 4'096);
        ASSERT_TRUE(ranks.close().empty());
      }
    }
  }
}

// Both long: the second waits for the first, whoever is late.
TEST(DenseCoded, SeveralCallsAtOnceDoNotWaitForEachOtherForEver) {
  const Problem one = problem_of("int8", 3, DataType::kFloat32, 90'000, 2);
  const Problem other = problem_of("4bit", 3, DataType::kFloat32, 200'000, 4);
  InprocRanks ranks(3, uneven_network(5));
  std::vector<Tensor> tensors;
  std::vector<support::SharedEnding> endings;
  for (const Problem* problem : {&one, &other, &one}) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      tensors.push_back(support::tensor_of(*problem, rank));
    }
  }
  for (std::size_t call = 0; call < 3; ++call) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      endings.push_back(ranks.submit(
          rank, support::sparse_all_reduce(call == 1 ? other : one, tensors[3 * call + rank])));
    }
  }
  ranks.run_all();
  for (std::size_t i = 0; i < endings.size(); ++i) {
    ASSERT_TRUE(endings[i]->good()) << endings[i]->text();
    const Problem& problem = i / 3 == 1 ? other : one;
    ASSERT_EQ(reference::difference(DataType::kFloat32, reference::all_reduce(problem).tensor,
                                    tensors[i].values),
              "");
  }
}

// What the ranks hold afterwards, without the reference, over steps that share residuals.
TEST(DenseCoded, LosesNoMassOverConsecutiveSteps) {
  constexpr std::uint64_t kD = 1000;
  for (const std::string& wire : kWires) {
    InprocRanks ranks(3, uneven_network(7));
    std::vector<std::optional<reference::Bytes>> residuals(
        3, reference::zeros(DataType::kFloat32, kD));
    for (std::uint64_t step = 0; step < 5; ++step) {
      Problem problem = problem_of(wire, 3, DataType::kFloat32, kD, 10 * step);
      std::vector<Tensor> tensors;
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        problem.ranks[rank].residual = residuals[rank];
        tensors.push_back(support::tensor_of(problem, rank));
      }
      const auto endings = ranks.run(
          [&](std::uint32_t rank) { return support::sparse_all_reduce(problem, tensors[rank]); });
      double lost = 0;
      for (std::uint64_t i = 0; i < kD; ++i) {
        double before = 0;
        double after = reference::load(DataType::kFloat32, tensors[0].values, i);
        for (std::uint32_t rank = 0; rank < 3; ++rank) {
          ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
          before += reference::load(DataType::kFloat32, reference::accumulated(problem, rank), i);
          const double rest = reference::load(DataType::kFloat32, *tensors[rank].residual, i);
          after += rest;
          lost += std::fabs(rest);
        }
        ASSERT_NEAR(before, after, 1e-5) << wire << " step " << step << " at " << i;
        if (i % 100 == 99) {
          ASSERT_GT(lost, 0) << wire;
        }
      }
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        residuals[rank] = tensors[rank].residual;
      }
    }
    EXPECT_TRUE(ranks.close().empty());
  }
}

// A sum that overflows, or what remains of it in the owner's residual, which nobody else sees.
TEST(DenseCoded, OverflowAnywhereLeavesEveryResidualAsItWas) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const std::string& wire : kWires) {
    for (std::uint32_t owner = 0; owner < 3; ++owner) {
      Problem problem = problem_of(wire, 3, DataType::kFloat32, 3 * block_of(wire), 1);
      for (reference::Input& input : problem.ranks) {
        reference::store(DataType::kFloat32, input.gradient, owner * block_of(wire) + 5,
                         kLargest * 0.75F);
      }
      InprocRanks ranks(3);
      EXPECT_EQ(support::differs_from_reference(ranks, problem), "") << wire;
      // fp16 saturates, and the mean magnitude of a block overflows nowhere.
      EXPECT_EQ(reference::all_reduce(problem).happened, wire == "fp16" || wire == "sign");
    }
  }
}

TEST(DenseCoded, OnOneRankIsCodedOnce) {
  for (const std::string& wire : kWires) {
    Problem problem = problem_of(wire, 1, DataType::kFloat32, 700, 2);
    InprocRanks ranks(1);
    EXPECT_EQ(support::differs_from_reference(ranks, problem), "") << wire;
    const reference::Bytes once = reference::all_reduce(problem).tensor;
    problem.ranks[0] = {once, std::nullopt};
    EXPECT_EQ(
        reference::difference(DataType::kFloat32, once, reference::all_reduce(problem).tensor), "")
        << wire;
  }
}

/// Of the ranks' regions: blocks floor(jB/P) to floor((j+1)B/P).
std::uint64_t region_bytes(const std::string& wire, DataType type, std::uint64_t d,
                           std::uint32_t ranks, std::uint32_t rank) {
  const sparse::BlockCoder& coder = *sparse::codec_registry().find(wire).codec.blocks();
  const std::uint64_t block = coder.block();
  const std::uint64_t blocks = (d + block - 1) / block;
  const std::uint64_t begin = std::min(d, rank * blocks / ranks * block);
  const std::uint64_t end = std::min(d, (rank + 1) * blocks / ranks * block);
  return coder.bytes(accumulation_type(type), end - begin);
}

TEST(DenseCoded, SendsEachRegionToItsOwnerAndItsSumToAll) {
  std::uint64_t seed = 0;
  for (const std::string& wire : kWires) {
    for (const std::uint64_t d :
         {std::uint64_t{100}, std::uint64_t{1700}, std::uint64_t{120'000}}) {
      for (const std::uint32_t size : {1U, 2U, 3U, 4U, 7U}) {
        if (support::kSanitized && size != 3) {
          continue;
        }
        const DataType type = d == 120'000 ? DataType::kFloat32
                                           : reference::one_of(reference::kFloatingTypes, ++seed);
        InprocRanks ranks(size, uneven_network(seed));
        ASSERT_EQ(support::differs_from_reference(ranks, problem_of(wire, size, type, d, seed)),
                  "");
        const collectives::Tree tree(size);
        std::uint64_t most = 0;
        for (std::uint32_t rank = 0; rank < size; ++rank) {
          most = std::max(most, region_bytes(wire, type, d, size, rank));
        }
        const std::uint32_t connections = ranks.fabric().options().connections;
        // Paced on all ranks alike; then what is long is acknowledged.
        for (std::uint32_t rank = 0; rank < size && size > 1; ++rank) {
          const std::uint64_t headers =
              tree.folded_away(rank) ? 1 : tree.rounds() + (tree.folds(rank) ? 1 : 0);
          std::uint64_t messages = headers;
          std::uint64_t bytes = headers * collectives::kHeaderBytes;
          const std::uint64_t own = region_bytes(wire, type, d, size, rank);
          for (std::uint32_t other = 0; other < size; ++other) {
            if (other == rank) {
              continue;
            }
            const std::uint64_t region = region_bytes(wire, type, d, size, other);
            messages += (region != 0 ? sparse::parts_of(region, connections) : 0) +
                        (own != 0 ? sparse::parts_of(own, connections) : 0);
            bytes += region + own;
            // It has received its own region's code, and the other's sum.
            messages += (own > sparse::kAcknowledgedBytes ? 1 : 0) +
                        (region > sparse::kAcknowledgedBytes ? 1 : 0);
          }
          const Statistics seen = ranks.group(rank)->metrics.read();
          EXPECT_EQ(seen.messages_sent, messages) << wire << " d=" << d << " P=" << size;
          EXPECT_EQ(seen.bytes_sent, bytes) << wire << " d=" << d << " P=" << size;
        }
        EXPECT_TRUE(ranks.close().empty());
      }
    }
  }
}

TEST(DenseCoded, IsDenseAndNoExactSum) {
  const auto refusal = [](const char* wire, Semantics semantics) {
    sparse::SparseCall call;
    call.d = 100;
    call.options.algorithm = "dense";
    call.options.wire = wire;
    call.options.semantics = semantics;
    try {
      static_cast<void>(sparse::resolve(call));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const Semantics semantics : reference::named_values<Semantics>()) {
    EXPECT_EQ(refusal("lossless", semantics), "") << to_string(semantics);
  }
  EXPECT_EQ(refusal("4bit", Semantics::kDense), "");
  EXPECT_EQ(refusal("4bit", Semantics::kAny), "");
  EXPECT_EQ(
      refusal("4bit", Semantics::kExactSum),
      "semantics 'exact_sum' rules out algorithm 'dense' on wire '4bit', which keeps 'dense'");
  EXPECT_NE(refusal("int8", Semantics::kGtopk), "");
}

/// One host, hosts of one rank, pairs, and a large host whose ranks are not neighbours.
std::vector<std::vector<std::string>> placements_of(std::uint32_t ranks) {
  std::vector<std::string> uneven;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    uneven.push_back(rank % 3 == 1 ? "small" : "large");
  }
  return {support::hosts_of(ranks, ranks), support::hosts_of(ranks, 1), support::hosts_of(ranks, 2),
          uneven};
}

TEST(DensePlaced, GivesTheReferencesBitsOnAnyHosts) {
  std::uint64_t seed = 0;
  for (const std::string& wire : kWires) {
    const std::uint64_t block = block_of(wire);
    for (std::uint32_t size = 1; size <= (support::kSanitized ? 4 : 7); ++size) {
      for (const std::vector<std::string>& hosts : placements_of(size)) {
        for (const std::uint64_t d : {std::uint64_t{1}, 2 * block + 1, std::uint64_t{3001}}) {
          const DataType type = reference::one_of(reference::kFloatingTypes, ++seed);
          Problem problem = problem_of(wire, size, type, d, seed);
          problem.options.algorithm = "dense-placed";
          problem.hosts = hosts;
          InprocRanks ranks(size, uneven_network(seed), hosts);
          ASSERT_EQ(support::differs_from_reference(ranks, problem), "")
              << wire << " " << to_string(type) << " P=" << size << " d=" << d;
          ASSERT_TRUE(ranks.close().empty());
        }
      }
    }
  }
}

// A host sends what one rank would among as many ranks as there are hosts, however many it has.
TEST(DensePlaced, SendsBetweenHostsWhatOneRankOfEachWould) {
  constexpr std::uint64_t kD = 200'000;
  for (const std::uint32_t each : {1U, 2U, 3U}) {
    const std::uint32_t size = 3 * each;
    Problem problem = problem_of("4bit", size, DataType::kFloat32, kD, 4);
    problem.options.algorithm = "dense-placed";
    problem.hosts = support::hosts_of(size, each);
    InprocRanks ranks(size, {.seed = each}, problem.hosts);
    std::map<std::uint32_t, std::uint64_t> codes;  // of each host, but those within it
    ranks.fabric().set_faults([&](const transport::inproc::Sent& sent) {
      const bool between = sent.source / each != sent.destination / each;
      if (between && transport::kind_of(sent.tag) == transport::TagKind::kCollective &&
          sent.bytes > collectives::kHeaderBytes) {
        codes[sent.source / each] += sent.bytes;
      }
      return transport::inproc::Fault{};
    });
    ASSERT_EQ(support::differs_from_reference(ranks, problem), "") << each;
    for (std::uint32_t host = 0; host < 3; ++host) {
      std::uint64_t expected = 0;
      for (std::uint32_t other = 0; other < 3; ++other) {
        if (other != host) {
          expected += region_bytes("4bit", DataType::kFloat32, kD, 3, other) +
                      region_bytes("4bit", DataType::kFloat32, kD, 3, host);
        }
      }
      EXPECT_EQ(codes[host], expected) << each;
    }
  }
}

// Whichever rank of a host has it, nothing happens anywhere.
TEST(DensePlaced, AStepWithAValueThatIsNotFiniteDidNotHappen) {
  for (std::uint32_t bad = 0; bad < 4; ++bad) {
    Problem problem = problem_of("int8", 4, DataType::kFloat32, 1'000, 3);
    problem.options.algorithm = "dense-placed";
    problem.hosts = support::hosts_of(4, 2);
    reference::store(problem.type, problem.ranks[bad].gradient, 777,
                     std::numeric_limits<double>::infinity());
    InprocRanks ranks(4, {.seed = bad}, problem.hosts);
    ASSERT_EQ(support::differs_from_reference(ranks, problem), "") << bad;
  }
}

}  // namespace
}  // namespace gtopk
