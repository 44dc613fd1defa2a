// Sparse all-reduces whose lists stay on a device, when something goes wrong: a damaged list, a
// rank that dies or a device that takes too long while a merge is under way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "tests/gtopk/algorithms/device_job.hpp"

namespace gtopk {
namespace {

using sparse::testing::all;
using sparse::testing::DeviceJob;
using sparse::testing::HostLists;
using sparse::testing::plain;
using ::testing::HasSubstr;
using transport::TagKind;
using transport::inproc::Fault;
using transport::inproc::Sent;

/// Of a collective's message: which part of its list it is.
std::uint32_t part_of(const Sent& sent) {
  return static_cast<std::uint32_t>(sent.tag & ((1U << transport::TagBits::kChunk) - 1));
}
constexpr std::uint32_t kValues = 2;
constexpr std::uint32_t kIndices = 3;

/// Runs a job in which the first message of that part from `source` is damaged; all must fail, with
/// this text somewhere, and the group must go on. on_device: for each rank.
void expect_noticed(const reference::Problem& problem, const std::vector<bool>& on_device,
                    std::uint32_t source, std::uint32_t part, Fault damage,
                    const std::string& text) {
  const auto ranks = static_cast<std::uint32_t>(problem.ranks.size());
  SCOPED_TRACE(fmt::format("{} with {}, part {} from {} of {}", problem.options.algorithm,
                           problem.options.wire, part, source, ranks));
  DeviceJob job(problem, 1, on_device);
  bool done = false;
  job.ranks().fabric().set_faults([&](const Sent& sent) {
    const auto kind = static_cast<TagKind>(sent.tag >> (64U - transport::TagBits::kKind));
    if (done || kind != TagKind::kCollective || sent.source != source || part_of(sent) != part) {
      return Fault();
    }
    done = true;
    return damage;
  });
  job.call();
  job.run();
  ASSERT_TRUE(done);
  bool noticed = false;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (job.ending(rank)->error) {
      EXPECT_EQ(job.ending(rank)->error->kind(), ErrorKind::kMismatch) << job.ending(rank)->text();
      noticed = noticed || job.ending(rank)->text().find(text) != std::string::npos;
    }
  }
  EXPECT_TRUE(noticed) << job.ending(0)->text() << "\n" << job.ending(ranks - 1)->text();
  job.ranks().fabric().set_faults({});
  EXPECT_EQ(support::group_works(job.ranks()), "");
}

void expect_noticed(const char* algorithm, std::uint32_t ranks, std::uint32_t source,
                    std::uint32_t part, Fault damage, const std::string& text) {
  expect_noticed(plain(ranks, 5000, 400, algorithm), all(ranks), source, part, damage, text);
}

TEST(ListsOnDevicesFail, DamagedOnesAreNoticedAndTheGroupWorksOn) {
  Fault bent;
  bent.flip = 3;  // the highest byte of the first index
  Fault shorter;
  shorter.length = 100;
  const std::string ascending = "sent a damaged list: indices not ascending below 5000";
  for (const char* const algorithm : {"gtopk", "gtopk-tree", "topk"}) {
    expect_noticed(algorithm, 2, 1, kIndices, bent, ascending);  // merged
    expect_noticed(algorithm, 4, 3, kIndices, bent, ascending);  // merged by one of several
    expect_noticed(algorithm, 3, 0, kIndices, bent, ascending);  // the result, or on the way there
    expect_noticed(algorithm, 2, 1, kIndices, shorter, "1600 bytes of values and 100 of indices");
    expect_noticed(algorithm, 2, 1, kValues, shorter, "100 bytes of values and 1600 of indices");
  }
  expect_noticed("gtopk-tree", 2, 0, kIndices, bent, ascending);  // the result
}

// Also by a device that gets it from a rank without one, and by such a rank.
TEST(ListsOnDevicesFail, DamagedCodesAreNoticedAndTheGroupWorksOn) {
  constexpr std::uint32_t kRest = 2;  // of two messages
  struct Wire {
    const char* name;
    std::size_t value_bytes;  // of 400 entries; the parameters follow
  };
  const std::string invalid = "sent a damaged list: not a valid code of entries below 5000";
  for (const Wire& wire :
       {Wire{"lossless", 1600}, Wire{"bf16", 800}, Wire{"fp16", 800}, Wire{"int8", 404}}) {
    Fault bent;
    bent.flip = wire.value_bytes;
    Fault bent_here = bent;
    *bent_here.flip += 64;  // behind its header
    Fault shorter;
    shorter.length = 100;
    for (const char* const algorithm : {"gtopk", "gtopk-tree", "topk"}) {
      const auto problem = [&](std::uint32_t ranks) {
        return plain(ranks, 5000, 400, algorithm, wire.name);
      };
      expect_noticed(problem(2), all(2), 1, kRest, bent, invalid);
      expect_noticed(problem(4), all(4), 3, kRest, bent, invalid);
      expect_noticed(problem(2), {true, false}, 1, 0, bent_here, invalid);
      expect_noticed(problem(2), {false, true}, 1, kRest, bent,
                     "sent a damaged list: not a valid index code: more than 63 low bits");
      expect_noticed(problem(2), all(2), 1, kRest, shorter, "400 entries in 164 bytes, expected");
    }
    // The result.
    expect_noticed(plain(2, 5000, 400, "gtopk-tree", wire.name), all(2), 0, kRest, bent, invalid);
  }
}

TEST(ListsOnDevicesFail, WhatTheHeaderSaysIsCheckedBeforeAnythingIsReceived) {
  for (const char* const wire : {"raw", "lossless", "int8"}) {
    for (const std::size_t at : {std::size_t{24}, std::size_t{28}, std::size_t{33}}) {
      Fault bent;
      bent.flip = at;  // the width of indices, the parts, the count
      expect_noticed(plain(2, 5000, 400, "gtopk", wire), all(2), 1, 0, bent, "sent a damaged");
    }
  }
}

TEST(ListsOnDevicesFail, APeerThatDiesWhileANodeIsMergedIsAnErrorAtOnceAndTheMemoryOutlivesIt) {
  DeviceJob job(plain(4, 5000, 400, "gtopk"), 1, all(4));
  job.call();
  job.ranks().run_until([&] { return job.device(0).asked() == 1; });
  HostLists& device = job.device(0);
  const std::weak_ptr<HostLists> held = job.release(0);
  job.ranks().kill(2, transport::inproc::Death::kNoticed);
  job.ranks().run_until([&] { return job.ending(0)->ended; });
  EXPECT_FALSE(job.ending(0)->good());
  EXPECT_EQ(job.ending(0)->error->kind(), ErrorKind::kPeerFailed) << job.ending(0)->text();
  ASSERT_FALSE(held.expired());
  EXPECT_TRUE(device.work());
  job.ranks().run_until([&] { return held.expired(); });
  for (const std::uint32_t rank : {1U, 3U}) {
    job.ranks().run_until([&] {
      job.device(rank).work();
      return job.ending(rank)->ended;
    });
    EXPECT_FALSE(job.ending(rank)->good());
  }
  job.ending(2)->ignore("it is dead");
}

TEST(ListsOnDevicesFail, ATimeOutNamesTheDeviceAndTheMemoryOutlivesIt) {
  DeviceJob job(plain(2, 5000, 400, "gtopk"), 1, all(2));
  job.call();
  job.ranks().run_until([&] {
    job.device(1).work();
    return job.ending(0)->ended && job.ending(1)->ended;
  });
  EXPECT_EQ(job.ending(0)->error->kind(), ErrorKind::kTimeout) << job.ending(0)->text();
  EXPECT_THAT(job.ending(0)->text(), HasSubstr("waiting for its device"));
  HostLists& device = job.device(0);
  const std::weak_ptr<HostLists> held = job.release(0);
  ASSERT_FALSE(held.expired());
  EXPECT_TRUE(device.work());
  job.ranks().run_until([&] { return held.expired(); });
  static_cast<void>(job.ending(1)->good());
}

// Rank 0 merges, and rank 1 waits for the result.
TEST(ListsOnDevicesFail, WhatTheDeviceCannotDoFailsEveryRank) {
  DeviceJob job(plain(2, 5000, 400, "gtopk-tree"), 1, all(2));
  job.device(0).break_with(std::make_exception_ptr(std::runtime_error("cudaErrorOfATest")));
  job.call();
  job.run();
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_FALSE(job.ending(rank)->good());
    EXPECT_THAT(job.ending(rank)->text(), HasSubstr("cudaErrorOfATest"));
  }
}

}  // namespace
}  // namespace gtopk
