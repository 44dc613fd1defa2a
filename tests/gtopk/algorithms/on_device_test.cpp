// A sparse all-reduce whose lists stay on a device: sent from there, received there, merged there.
// The device is the kernels on the host executor, its memory the host's, and the network takes it;
// the results are the sequential reference's, bit for bit, also among ranks without a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "gtopk/gate.hpp"
#include "tests/gtopk/algorithms/device_job.hpp"
#include "tests/reference/reference_selectors.hpp"
#include "tests/support/sanitized.hpp"

namespace gtopk {
namespace {

using sparse::testing::all;
using sparse::testing::DeviceJob;
using sparse::testing::HostLists;
using sparse::testing::plain;
using sparse::testing::with_devices;
using support::InprocRanks;
using support::SharedEnding;
using support::Tensor;
using ::testing::HasSubstr;
using transport::TagKind;

constexpr const char* kAlgorithms[] = {"gtopk", "gtopk-tree", "topk"};
constexpr const char* kWires[] = {"raw", "lossless", "bf16", "fp16", "int8"};

/// How a case came out; empty: as the reference does.
std::string outcome(const reference::Problem& problem, std::uint64_t seed,
                    const std::vector<bool>& on_device) {
  DeviceJob job(problem, seed, on_device);
  job.call();
  job.run();
  const std::string wrong = job.differs();
  const std::vector<std::string> left = job.ranks().close();
  return wrong.empty() && !left.empty() ? left.front() : wrong;
}

// By turns all ranks have a device, those with an even number, those with an odd one.
TEST(ListsOnDevices, GiveTheReferencesBits) {
  constexpr std::uint64_t kCases = support::kSanitized ? 1 : 2;
  std::uint64_t number = 0;
  for (const char* const algorithm : kAlgorithms) {
    for (const std::uint32_t size : {2U, 3U, 4U, 5U, 6U, 7U, 8U}) {
      for (const DataType type : reference::kFloatingTypes) {
        for (std::uint64_t one = 0; one < kCases * std::size(kWires); ++one) {
          const std::uint64_t seed = 1 + 1000 * ++number;
          reference::Case drawn = reference::random_case(seed, type, size, algorithm);
          drawn.problem.options.wire = kWires[one % std::size(kWires)];
          std::vector<bool> on_device(size);
          for (std::uint32_t rank = 0; rank < size; ++rank) {
            on_device[rank] = number % 3 == 0 || rank % 2 == number % 3 - 1;
          }
          ASSERT_EQ(outcome(drawn.problem, seed, on_device), "")
              << drawn.description << ", wire " << drawn.problem.options.wire;
        }
      }
    }
  }
}

TEST(ListsOnDevices, GiveTheReferencesBitsWithLevels) {
  std::uint64_t seed = 0;
  for (const char* const wire : {"2bit", "sign"}) {
    for (const std::uint32_t size : {2U, 3U, 5U}) {
      for (const DataType type : reference::kFloatingTypes) {
        reference::Case drawn = reference::random_case(++seed, type, size, "topk");
        drawn.problem.options.wire = wire;
        std::vector<bool> on_device(size, true);
        on_device[seed % size] = seed % 2 == 0;
        ASSERT_EQ(outcome(drawn.problem, seed, on_device), "")
            << drawn.description << ", wire " << wire;
      }
    }
  }
}

TEST(ListsOnDevices, GiveTheReferencesBitsForApproximateSelectors) {
  std::uint64_t seed = 0;
  for (const char* const selector : {"gaussian", "sampled"}) {
    for (const char* const algorithm : kAlgorithms) {
      for (const std::uint32_t size : {2U, 3U, 5U}) {
        for (const DataType type : reference::kFloatingTypes) {
          reference::Case drawn = reference::random_case(++seed, type, size, algorithm);
          reference::choose_selector(drawn.problem.options, drawn.problem.d, selector);
          drawn.problem.options.wire = kWires[seed % std::size(kWires)];
          ASSERT_EQ(outcome(drawn.problem, seed, all(size)), "")
              << drawn.description << ", " << selector;
        }
      }
    }
  }
}

// Longer than a tile of the kernels, and than what is sent without an acknowledgement.
TEST(ListsOnDevices, MayBeLong) {
  for (const char* const algorithm : kAlgorithms) {
    EXPECT_EQ(outcome(plain(3, 60'000, 9000, algorithm), 5, all(3)), "") << algorithm;
    for (const char* const wire : kWires) {
      EXPECT_EQ(outcome(plain(3, 40'000, 6000, algorithm, wire), 6, {true, false, true}), "")
          << algorithm << ", " << wire;
    }
  }
}

// Its header, its values, its indices; the last two from and into the device's memory. A rank
// without a device sends one message.
TEST(ListsOnDevices, AreThreeMessagesEach) {
  constexpr std::uint64_t kEntries = 700;
  constexpr std::uint64_t kListBytes = 64 + kEntries * 8;
  for (const bool everywhere : {true, false}) {
    DeviceJob job(plain(4, 5000, kEntries, "gtopk"), 3, {true, everywhere, true, everywhere});
    job.call();
    job.run();
    ASSERT_EQ(job.differs(), "");
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      const auto& counters = job.ranks().fabric().counters(rank);
      const auto& sent = counters.of(TagKind::kCollective);
      const bool device = everywhere || rank % 2 == 0;
      // Two rounds: with rank ^ 1 and with rank ^ 2, which has a device exactly if this one does.
      EXPECT_EQ(sent.messages_sent, device ? 2U * 3 : 2U) << rank;
      EXPECT_EQ(sent.bytes_sent, 2 * kListBytes) << rank;
      EXPECT_EQ(counters.on_devices, !device ? 0U : everywhere ? 8U : 6U) << rank;
      if (device) {
        EXPECT_EQ(job.device(rank).merges(), 2U);
        EXPECT_EQ(job.device(rank).inspections(), 1U);
      }
    }
  }
}

// Its header and the rest, as long as the CPU codes it; what is passed on is not coded again.
TEST(ListsOnDevices, AreTwoMessagesEachIfTheyAreCoded) {
  for (const char* const wire : {"lossless", "int8"}) {
    for (const char* const algorithm : {"gtopk", "gtopk-tree"}) {
      const reference::Problem problem = plain(4, 5000, 700, algorithm, wire);
      DeviceJob here(problem, 3, std::vector<bool>(4, false));
      DeviceJob there(problem, 3, all(4));
      for (DeviceJob* const job : {&here, &there}) {
        job->call();
        job->run();
        ASSERT_EQ(job->differs(), "") << wire;
      }
      for (std::uint32_t rank = 0; rank < 4; ++rank) {
        const auto& one = here.ranks().fabric().counters(rank).of(TagKind::kCollective);
        const auto& other = there.ranks().fabric().counters(rank).of(TagKind::kCollective);
        EXPECT_EQ(other.bytes_sent, one.bytes_sent) << wire;
        EXPECT_EQ(other.messages_sent, 2 * one.messages_sent) << wire;
        EXPECT_EQ(there.device(rank).closings(), 1U);
        EXPECT_EQ(there.device(rank).inspections(), 1U);
      }
    }
  }
}

TEST(ListsOnDevices, LongOnesAreAcknowledged) {
  DeviceJob job(plain(2, 60'000, 3000, "gtopk"), 3, all(2));
  job.call();
  job.run();
  ASSERT_EQ(job.differs(), "");
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto& sent = job.ranks().fabric().counters(rank).of(TagKind::kCollective);
    EXPECT_EQ(sent.messages_sent, 3U + 1);
    EXPECT_EQ(sent.bytes_sent, 64U + 3000 * 8);
  }
}

TEST(ListsOnDevices, HappenAtAGateWithTheOtherPartsOrNotAtAll) {
  for (const bool other : {true, false}) {
    reference::Problem problem = plain(1, 500, 10, "gtopk");
    problem.ranks.push_back(problem.ranks.front());
    std::vector<std::shared_ptr<Gate>> gates;
    InprocRanks ranks(2, with_devices(1));
    std::vector<Tensor> tensors;
    std::vector<std::unique_ptr<HostLists>> devices;
    std::vector<reference::Problem> problems(2, problem);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      gates.push_back(std::make_shared<Gate>(2));
      gates.back()->arrive(other);
      problems[rank].options.gate = gates.back();
      tensors.push_back(support::tensor_of(problem, rank));
    }
    std::vector<SharedEnding> endings;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      devices.push_back(std::make_unique<HostLists>(problems[rank], tensors[rank], 1));
      endings.push_back(ranks.submit(rank, devices[rank]->begin_and_call()));
    }
    ranks.run_until([&] {
      devices[0]->work();
      devices[1]->work();
      return endings[0]->ended && endings[1]->ended;
    });
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(endings[rank]->good()) << endings[rank]->text();
      devices[rank]->commit();
      EXPECT_EQ(gates[rank]->verdict(), other);
      float first = 0;
      std::memcpy(&first, tensors[rank].values.data(), sizeof first);
      EXPECT_EQ(std::isnan(first), !other);
    }
  }
}

// As the CPU records it: DDP may overwrite its buckets.
TEST(ListsOnDevices, DeliverAlsoToWhoeverKeepsARecord) {
  constexpr std::uint64_t kEntries = 300;
  const reference::Problem problem = plain(3, 5000, kEntries, "gtopk-tree");
  std::vector<std::vector<std::int64_t>> indices(3, std::vector<std::int64_t>(kEntries));
  std::vector<std::vector<float>> values(3, std::vector<float>(kEntries));
  for (const std::uint64_t room : {kEntries, kEntries - 1}) {
    InprocRanks ranks(3, with_devices(2));
    std::vector<Tensor> tensors;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      tensors.push_back(support::tensor_of(problem, rank));
    }
    std::vector<std::unique_ptr<HostLists>> devices;
    std::vector<SharedEnding> endings;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      const Delivered record{indices[rank].data(), values[rank].data(), room};
      devices.push_back(std::make_unique<HostLists>(problem, tensors[rank], rank, record));
      const Collective call = devices[rank]->begin_and_call();
      const std::vector<std::uint8_t> reached(3, 1);
      const GroupShape group{
          .name = "default", .rank = rank, .size = 3, .reached_from_devices = reached};
      if (room < kEntries) {
        EXPECT_THROW(call.check(group), Error);
        continue;
      }
      call.check(group);
      endings.push_back(ranks.submit(rank, call));
    }
    ranks.run_until([&] {
      for (const auto& device : devices) {
        device->work();
      }
      return std::ranges::all_of(endings, [](const SharedEnding& each) { return each->ended; });
    });
    for (const SharedEnding& ending : endings) {
      EXPECT_TRUE(ending->good()) << ending->text();
    }
  }
  const reference::Outcome expected = reference::all_reduce(problem);
  for (std::uint64_t i = 0; i < kEntries; ++i) {
    EXPECT_EQ(values[0][i], reference::load(problem.type, expected.tensor,
                                            static_cast<std::uint64_t>(indices[0][i])));
  }
  EXPECT_TRUE(std::ranges::is_sorted(indices[0], std::ranges::less_equal()));
  for (std::uint32_t rank = 1; rank < 3; ++rank) {
    EXPECT_EQ(indices[rank], indices[0]);
    EXPECT_EQ(values[rank], values[0]);
  }
}

TEST(ListsOnDevices, OtherCallsAreRefused) {
  const auto room = [](const SparseOptions& options, std::uint32_t ranks = 2) {
    return device_list_room(1000, DataType::kFloat32, options, ranks).has_value();
  };
  SparseOptions good;
  good.k = 10;
  good.wire = "raw";
  EXPECT_TRUE(room(good));
  EXPECT_FALSE(room(good, 1));
  EXPECT_FALSE(device_list_room(0, DataType::kFloat32, good, 2).has_value());
  std::vector<SparseOptions> others(5, good);
  others[0].algorithm = "hierarchical";
  others[1].algorithm = "exact";
  others[2].algorithm = "rs-ag";
  others[3].selector = "block";
  others[3].k = 0;
  others[3].density = 0.1;
  others[4].algorithm = "dense";
  reference::Problem problem = plain(2, 1000, 10, "gtopk");
  Tensor tensor = support::tensor_of(problem, 0);
  HostLists device(problem, tensor, 1);
  ListsOnDevice lists;
  lists.device = &device;
  for (const SparseOptions& other : others) {
    EXPECT_FALSE(room(other));
    EXPECT_THROW((void)sparse_all_reduce(lists, 1000, DataType::kFloat32, other), Error);
  }
  SparseOptions none = good;
  none.k = 0;
  EXPECT_THROW((void)room(none), Error);

  const Collective call = sparse_all_reduce(lists, 1000, DataType::kFloat32, good);
  const std::vector<std::uint8_t> some{1, 0};
  try {
    call.check({.name = "default", .rank = 0, .size = 2, .reached_from_devices = some});
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("the transport takes no other between it and rank 1; "
                                        "seen: cuda:2"));
  }
}

}  // namespace
}  // namespace gtopk
