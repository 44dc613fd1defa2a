// Engine and wire: a message of a collective arrives truncated, padded, altered or never. No rank
// reads beyond it, hangs, or returns a wrong result that the message's structure gives away; and
// the group still works. (Altered values inside a well-formed list cannot be told from others:
// networks have checksums for that.)
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "src/collectives/header.hpp"
#include "tests/support/calls.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::network;
using support::SharedEnding;
using support::Tensor;
using transport::TagKind;
using transport::inproc::Fault;
using transport::inproc::Sent;

bool is_kind(const Sent& sent, TagKind kind) {
  return static_cast<TagKind>(sent.tag >> 62U) == kind;
}

/// The damage to collective message number `target`.
struct Damage {
  std::uint64_t target = 0;
  Fault fault;
  std::uint64_t seen = 0;
  bool done = false;

  Fault operator()(const Sent& sent) {
    if (!is_kind(sent, TagKind::kCollective) || seen++ != target) {
      return {};
    }
    done = fault.length != sent.bytes;  // else it has that length already
    return fault;
  }
};

/// Runs one sparse all-reduce under the damage; returns what is wrong with how it went.
/// `structure`: the damage breaks the message's structure, so some rank must notice it.
std::string run_damaged(std::uint64_t seed, const std::string& algorithm, std::uint32_t size,
                        const std::shared_ptr<Damage>& damage, bool structure) {
  reference::Problem problem;
  reference::Random random(seed);
  problem.d = 200;
  problem.options.k = algorithm == "sketch" ? 2 : 20;  // few enough for both rounds of `sketch`
  problem.options.algorithm = algorithm;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    reference::Input input{reference::zeros(problem.type, problem.d),
                           reference::zeros(problem.type, problem.d)};
    for (std::uint64_t i = 0; i < problem.d; ++i) {
      reference::store(problem.type, input.gradient, i, random.uniform() - 0.5);
    }
    problem.ranks.push_back(std::move(input));
  }
  const reference::Outcome expected = reference::all_reduce(problem);
  InprocRanks ranks(size, network(seed));
  ranks.fabric().set_faults([damage](const Sent& sent) { return (*damage)(sent); });
  std::vector<Tensor> tensors;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    tensors.push_back(support::tensor_of(problem, rank));
  }
  const auto endings = ranks.run(
      [&](std::uint32_t rank) { return support::sparse_all_reduce(problem, tensors[rank]); });
  bool noticed = false;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    if (!endings[rank]->ended) {
      return "a rank has not ended";
    }
    if (endings[rank]->error) {
      noticed = true;
      if (endings[rank]->error->kind() != ErrorKind::kMismatch) {
        return endings[rank]->text();
      }
      if (tensors[rank].values != problem.ranks[rank].gradient ||
          tensors[rank].residual != problem.ranks[rank].residual) {
        return "a rank that failed has written";
      }
    } else if (structure && tensors[rank].values != expected.tensor) {
      return fmt::format("rank {} returns garbage", rank);
    }
  }
  if (damage->done && structure && !noticed) {
    return "nobody noticed";
  }
  ranks.fabric().set_faults({});
  const std::string works = support::group_works(ranks);
  if (!works.empty()) {
    return "afterwards: " + works;
  }
  const auto left = ranks.close();
  return left.empty() ? std::string() : left.front();
}

class DamagedMessage : public ::testing::TestWithParam<std::string> {};

TEST_P(DamagedMessage, OfAnotherLengthIsNoticedAndTheGroupWorksOn) {
  std::uint64_t seed = 0;
  for (const std::uint32_t size : {2U, 3U, 4U, 6U}) {
    for (std::uint64_t target = 0; target < 14; ++target) {
      for (const std::size_t length : {0UL, 1UL, 63UL, 64UL, 70UL, 223UL, 225UL, 900UL, 5000UL}) {
        const auto damage = std::make_shared<Damage>();
        damage->target = target;
        damage->fault.length = length;
        ASSERT_EQ(run_damaged(++seed, GetParam(), size, damage, true), "")
            << "P=" << size << " message " << target << " becomes " << length << " bytes, seed "
            << seed;
      }
    }
  }
}

TEST_P(DamagedMessage, AlteredHeader_IsNoticedAndGroupWorksOn) {
  std::uint64_t seed = 0;
  // Every field that is used: up to the end of k.
  const std::size_t checked = offsetof(collectives::Header, count);
  for (const std::uint32_t size : {2U, 3U, 5U}) {
    for (std::uint64_t target = 0; target < 6; ++target) {
      for (std::size_t offset = 0; offset < checked; ++offset) {
        const auto damage = std::make_shared<Damage>();
        damage->target = target;
        damage->fault.flip = offset;
        ASSERT_EQ(run_damaged(++seed, GetParam(), size, damage, true), "")
            << "P=" << size << " message " << target << " altered at " << offset << ", seed "
            << seed;
      }
    }
  }
}

TEST_P(DamagedMessage, AlteredAnywhereHangsNobodyAndBreaksNoMemory) {
  for (std::uint64_t seed = 0; seed < support::seeds(400); ++seed) {
    const auto damage = std::make_shared<Damage>();
    damage->target = seed % 10;
    damage->fault.flip = seed * 7 % 300;
    ASSERT_EQ(run_damaged(seed, GetParam(), 2 + seed % 4, damage, false), "") << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, DamagedMessage, ::testing::ValuesIn(reference::algorithms()));

TEST(LostMessage, EndsEveryRankAtTheTimeoutWithWhoWaitsForWhom) {
  for (std::uint64_t seed = 0; seed < support::seeds(30); ++seed) {
    const std::uint32_t size = 2 + seed % 5;
    InprocRanks ranks(size, network(seed));
    const auto damage = std::make_shared<Damage>();
    damage->target = seed % (2 * size - 2);
    damage->fault.drop = true;
    ranks.fabric().set_faults([damage](const Sent& sent) { return (*damage)(sent); });
    std::vector<std::int64_t> values(size, 1);
    const auto endings = ranks.run(
        [&](std::uint32_t rank) { return gtopk::all_reduce(&values[rank], 1, DataType::kInt64); });
    ASSERT_TRUE(damage->done);
    bool failed = false;
    for (const SharedEnding& ending : endings) {
      if (!ending->error) {
        continue;
      }
      failed = true;
      EXPECT_EQ(ending->error->kind(), ErrorKind::kTimeout) << ending->text();
      EXPECT_NE(ending->text().find("waiting for rank"), std::string::npos) << ending->text();
    }
    EXPECT_TRUE(failed);
  }
}

// Notices are messages, too: whatever happens to one, the timeout ends what it should have ended.
TEST(DamagedNotice, DelaysAnErrorUntilTheTimeoutAndHangsNobody) {
  for (std::uint64_t seed = 0; seed < support::seeds(120); ++seed) {
    const std::uint32_t size = 2 + seed % 5;
    InprocRanks ranks(size, network(seed));
    std::uint64_t seen = 0;
    ranks.fabric().set_faults([&](const Sent& sent) -> Fault {
      Fault fault;
      if (!is_kind(sent, TagKind::kControl) || seen++ != seed % 7) {
        return fault;
      }
      switch (seed % 4) {
        case 0:
          fault.drop = true;
          break;
        case 1:
          fault.length = seed * 13 % 1024;
          break;
        case 2:
          fault.length = 2000;
          break;
        default:
          fault.flip = seed % 40;
          break;
      }
      return fault;
    });
    std::vector<std::vector<std::int64_t>> values(size, std::vector<std::int64_t>(100));
    const auto endings = ranks.run([&](std::uint32_t rank) {
      return gtopk::all_reduce(values[rank].data(), rank == seed % size ? 100 : 1,
                               DataType::kInt64);
    });
    for (const SharedEnding& ending : endings) {
      EXPECT_TRUE(ending->error.has_value()) << seed;
    }
  }
}

}  // namespace
}  // namespace gtopk
