// Collectives on memory of a device's: those that only move bytes hand it to the transport as it
// is, the others refuse it. The in-process transport takes it for the host's, which it is here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gtopk/collectives.hpp"
#include "gtopk/error.hpp"
#include "src/collectives/all_reduce.hpp"
#include "tests/collectives/parts.hpp"

namespace gtopk {
namespace {

using support::InprocRanks;
using support::SharedEnding;
using testing::HasSubstr;
using Values = std::vector<std::int32_t>;

constexpr Memory kDevice = cuda_memory(1);
constexpr std::size_t kCount = 5000;  // long messages: 20,000 bytes

Values values(std::uint32_t from, std::uint32_t to) {
  Values made(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    made[i] = static_cast<std::int32_t>(i * 7 + std::size_t{from} * 100'003 +
                                        std::size_t{to} * 1'000'033);
  }
  return made;
}

Buffer in(Memory memory, Values& values) {
  return {values.data(), values.size(), DataType::kInt32, memory};
}

Buffers all_in(Memory memory, std::vector<Values>& lists) {
  Buffers buffers;
  for (Values& each : lists) {
    buffers.push_back(in(memory, each));
  }
  return buffers;
}

/// Ranks of which the first `on_device` have their memory on a device.
class MovedFromDevices : public testing::TestWithParam<std::uint32_t> {
 protected:
  static constexpr std::uint32_t kRanks = 4;

  [[nodiscard]] static Memory memory(std::uint32_t rank) {
    return rank < GetParam() ? kDevice : Memory{};
  }
  /// Runs it, and checks how many messages of each rank lay on a device.
  void run(const std::function<Collective(std::uint32_t)>& call,
           const std::function<std::uint64_t(std::uint32_t)>& messages) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      transport::inproc::FabricOptions options = test::network(seed);
      options.takes_devices = true;
      InprocRanks ranks(kRanks, options);
      test::expect_good(ranks.run([&](std::uint32_t rank) { return call(rank); }));
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        EXPECT_EQ(ranks.fabric().counters(rank).on_devices, rank < GetParam() ? messages(rank) : 0U)
            << "rank " << rank;
      }
      ASSERT_TRUE(ranks.close().empty());
    }
  }
};

TEST_P(MovedFromDevices, ByBroadcast) {
  std::vector<Values> data(kRanks);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    data[rank] = values(rank, 0);
  }
  // From rank 0 to rank 2, which is alone on its host, and to 3 and 1 on its own; in two pieces.
  const std::vector<std::uint64_t> messages = {6, 2, 2, 2};
  run([&](std::uint32_t rank) { return broadcast(in(memory(rank), data[rank]), 0); },
      [&](std::uint32_t rank) { return messages[rank]; });
  EXPECT_EQ(data, std::vector<Values>(kRanks, values(0, 0)));
}

TEST_P(MovedFromDevices, ByAllGather) {
  std::vector<std::vector<Values>> buffers(kRanks, std::vector<Values>(kRanks, Values(kCount)));
  std::vector<Values> expected;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    buffers[rank][rank] = values(rank, 0);
    expected.push_back(values(rank, 0));
  }
  run([&](std::uint32_t rank) { return all_gather(all_in(memory(rank), buffers[rank])); },
      [](std::uint32_t) { return 2 * (kRanks - 1); });
  EXPECT_EQ(buffers, std::vector(kRanks, expected));
}

TEST_P(MovedFromDevices, ByGatherAndScatter) {
  constexpr std::uint32_t kRoot = 1;
  std::vector<Values> buffers(kRanks, Values(kCount));
  std::vector<Values> data;
  std::vector<Values> parts;
  std::vector<Values> expected;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    data.push_back(values(rank, kRoot));
    parts.push_back(values(kRoot, rank));
    expected.push_back(data.back());
  }
  buffers[kRoot] = data[kRoot];
  const auto messages = [](std::uint32_t rank) { return rank == kRoot ? kRanks - 1 : 1; };
  run(
      [&](std::uint32_t rank) {
        Values& own = rank == kRoot ? buffers[kRoot] : data[rank];
        return gather(in(memory(rank), own),
                      rank == kRoot ? all_in(memory(rank), buffers) : Buffers(), kRoot);
      },
      messages);
  EXPECT_EQ(buffers, expected);

  std::vector<Values> got(kRanks, Values(kCount));
  run(
      [&](std::uint32_t rank) {
        Buffers given = rank == kRoot ? all_in(memory(rank), parts) : Buffers();
        Values& own = rank == kRoot ? parts[kRoot] : got[rank];
        return scatter(given, in(memory(rank), own), kRoot);
      },
      messages);
  got[kRoot] = parts[kRoot];
  EXPECT_EQ(got, parts);
}

TEST_P(MovedFromDevices, ByAllToAll) {
  std::vector<std::vector<Values>> buffers(kRanks, std::vector<Values>(kRanks, Values(kCount)));
  std::vector<std::vector<Values>> parts(kRanks);
  auto expected = buffers;
  for (std::uint32_t from = 0; from < kRanks; ++from) {
    for (std::uint32_t to = 0; to < kRanks; ++to) {
      parts[from].push_back(values(from, to));
      expected[to][from] = values(from, to);
    }
    buffers[from][from] = values(from, from);
  }
  run(
      [&](std::uint32_t rank) {
        ConstBuffers sent;
        for (std::uint32_t to = 0; to < kRanks; ++to) {
          sent.push_back(in(memory(rank), to == rank ? buffers[rank][rank] : parts[rank][to]));
        }
        return all_to_all(sent, all_in(memory(rank), buffers[rank]));
      },
      [](std::uint32_t) { return 2 * (kRanks - 1); });
  EXPECT_EQ(buffers, expected);
}

TEST_P(MovedFromDevices, ByMessages) {
  std::vector<Values> data(kRanks);
  std::uint32_t from = kRanks;
  data[0] = values(0, 1);
  data[1] = data[3] = Values(kCount);
  data[2] = values(2, 3);
  run(
      [&](std::uint32_t rank) {
        const Buffer mine = in(memory(rank), data[rank]);
        return rank == 3   ? recv_any(mine, 8, from)
               : rank == 1 ? recv(mine, 0, 7)
                           : send(mine, rank + 1, rank == 0 ? 7 : 8);
      },
      [](std::uint32_t) { return 1; });
  EXPECT_EQ(data[1], values(0, 1));
  EXPECT_EQ(data[3], values(2, 3));
  EXPECT_EQ(from, 2U);
}

INSTANTIATE_TEST_SUITE_P(SomeRanks, MovedFromDevices, testing::Values(0U, 1U, 2U, 4U));

/// What its check says on rank 1 of 3, of which messages to the ranks in `reached` may lie on a
/// device.
std::string refusal(const Collective& collective, const std::vector<std::uint8_t>& reached) {
  if (!collective.check) {
    return "taken";
  }
  try {
    collective.check({.name = "default", .rank = 1, .size = 3, .reached_from_devices = reached});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "taken";
}

TEST(DeviceMemory, IsRefusedByWhatReadsIt) {
  Values one = values(0, 0);
  Values other = values(1, 0);
  const Buffer there = in(kDevice, one);
  const Buffer here = in({}, other);
  Buffer numbers = there;
  numbers.dtype = DataType::kFloat32;
  SparseOptions options;
  options.k = 10;
  const std::vector<std::pair<std::string, Collective>> calls = {
      {"all_reduce", all_reduce(there)},
      {"reduce", reduce(there, 0)},
      {"reduce_scatter", reduce_scatter({here, there, here}, here)},
      {"reduce_scatter", reduce_scatter({here, here, here}, there)},
      {"sparse_all_reduce(gtopk)", sparse_all_reduce(numbers, Buffer(), options)},
      {"sparse_all_reduce(gtopk)", sparse_all_reduce(Buffers{numbers, numbers}, Buffer(), options)},
  };
  for (const auto& [name, call] : calls) {
    EXPECT_EQ(refusal(call, {1, 1, 1}), name +
                                            " on rank 1 of group 'default' expected host memory, "
                                            "as it reads its elements; seen: cuda:1");
  }
  EXPECT_EQ(refusal(all_reduce(here), {}), "taken");
}

TEST(DeviceMemory, IsRefusedWhereTheTransportDoesNotTakeIt) {
  Values one = values(0, 0);
  const Buffer there = in(kDevice, one);
  const auto missing = [](const std::string& name, int rank) {
    return name +
           " on rank 1 of group 'default' expected host memory, as the transport takes no "
           "other kind between this rank and rank " +
           std::to_string(rank) + "; seen: cuda:1";
  };
  EXPECT_EQ(refusal(broadcast(there, 0), {1, 0, 1}), "taken");
  EXPECT_EQ(refusal(broadcast(there, 0), {1, 1, 0}), missing("broadcast", 2));
  EXPECT_EQ(refusal(broadcast(there, 0), {}), missing("broadcast", 0));
  EXPECT_EQ(refusal(all_gather({there, there, there}), {0, 1, 1}), missing("all_gather", 0));
  EXPECT_EQ(refusal(gather(there, {}, 2), {0, 1, 1}), "taken");
  EXPECT_EQ(refusal(gather(there, {}, 0), {0, 1, 1}), missing("gather", 0));
  Values other = values(1, 0);
  const Buffer here = in({}, other);
  EXPECT_EQ(refusal(gather(there, {there, there, here}, 1), {1, 1, 0}), "taken");
  EXPECT_EQ(refusal(gather(there, {here, there, there}, 1), {1, 1, 0}), missing("gather", 2));
  EXPECT_EQ(refusal(all_to_all({here, there, there}, {here, there, here}), {0, 1, 1}), "taken");
  EXPECT_EQ(refusal(all_to_all({here, there, here}, {there, there, here}), {0, 1, 1}),
            missing("all_to_all", 0));
  EXPECT_EQ(refusal(scatter({}, there, 2), {0, 1, 1}), "taken");
  EXPECT_EQ(refusal(scatter({there, there, there}, there, 1), {1, 1, 0}), missing("scatter", 2));
  EXPECT_EQ(refusal(send(there, 0, 7), {1, 0, 0}), "taken");
  EXPECT_EQ(refusal(recv(there, 2, 7), {1, 0, 0}), missing("recv(from 2, tag 7)", 2));
}

TEST(DeviceMemory, IsNotCopiedByTheCore) {
  std::vector<Values> lists(3, values(0, 0));
  std::vector<Values> others = lists;
  const Buffers buffers = all_in(kDevice, lists);
  const Buffers parts = all_in(kDevice, others);
  EXPECT_THAT(
      refusal(gather(parts[1], buffers, 1), {1, 1, 1}),
      HasSubstr(
          "as it copies what a rank sends to itself, unless the buffers are the same; seen: "));
  EXPECT_EQ(refusal(gather(buffers[1], buffers, 1), {1, 1, 1}), "taken");
  EXPECT_THAT(refusal(scatter(parts, buffers[1], 1), {1, 1, 1}), HasSubstr("seen: cuda:1"));
  EXPECT_THAT(refusal(all_to_all(parts, buffers), {1, 1, 1}), HasSubstr("seen: cuda:1"));
  Values small(2040);  // 8160 bytes travel with a header
  EXPECT_THAT(refusal(send(in(kDevice, small), 0, 7), {1, 1, 1}),
              HasSubstr("as it copies messages of at most 8160 bytes; seen: cuda:1"));
  small.push_back(0);
  EXPECT_EQ(refusal(send(in(kDevice, small), 0, 7), {1, 1, 1}), "taken");
  small.resize(4096);  // 16384 bytes of a broadcast do, too
  EXPECT_THAT(refusal(broadcast(in(kDevice, small), 0), {1, 1, 1}),
              HasSubstr("as it copies broadcasts of at most 16384 bytes; seen: cuda:1"));
  small.push_back(0);
  EXPECT_EQ(refusal(broadcast(in(kDevice, small), 0), {1, 1, 1}), "taken");
  small.clear();
  EXPECT_EQ(refusal(broadcast(in(kDevice, small), 0), {1, 1, 1}), "taken");
}

TEST(DeviceMemory, ThatGetsPastTheChecksFailsTheOperation) {
  InprocRanks ranks(2);
  std::vector<Values> data(2, values(0, 0));
  for (const SharedEnding& ending : ranks.run([&](std::uint32_t rank) {
         return broadcast(in(rank == 0 ? kDevice : Memory{}, data[rank]), 0);
       })) {
    ASSERT_TRUE(ending->error.has_value());
    EXPECT_THAT(ending->text(), HasSubstr("is in memory of cuda:1, which the transport does not "
                                          "accept between these ranks"));
  }
}

TEST(DeviceMemory, MakesItsDeviceCurrentOnce) {
  transport::inproc::FabricOptions options = test::network(1);
  options.takes_devices = true;
  InprocRanks ranks(2, options);
  std::vector<Memory> current;
  bool broken = false;
  ranks.engine(0).use([&](Memory memory) {
    if (broken) {
      throw Error(ErrorKind::kTransport, "no such device");
    }
    current.push_back(memory);
  });
  std::vector<Values> data(2, values(0, 0));
  const auto from_device = [&](std::int16_t device) {
    return ranks.run([&, device](std::uint32_t rank) {
      return broadcast(in(rank == 0 ? cuda_memory(device) : Memory{}, data[rank]), 0);
    });
  };
  test::expect_good(from_device(1));
  test::expect_good(from_device(1));
  test::expect_good(from_device(0));
  EXPECT_EQ(current, (std::vector<Memory>{cuda_memory(1), cuda_memory(0)}));
  broken = true;
  for (const SharedEnding& ending : from_device(1)) {
    ASSERT_TRUE(ending->error.has_value());
    EXPECT_THAT(ending->text(), HasSubstr("no such device"));
  }
}

TEST(BuffersOfACall, AreOfOneType) {
  Values one = values(0, 0);
  std::vector<float> other(kCount);
  const auto refused = [](const std::function<Collective()>& make) -> std::string {
    try {
      static_cast<void>(make());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "taken";
  };
  const std::string text = " takes buffers of one type: int32 expected, float32 seen";
  EXPECT_EQ(refused([&] { return all_gather({one, other}); }), "all_gather" + text);
  EXPECT_EQ(refused([&] { return all_to_all({one, one}, {one, other}); }), "all_to_all" + text);
  EXPECT_EQ(refused([&] { return gather(one, {one, other}, 0); }), "gather" + text);
  EXPECT_EQ(refused([&] { return scatter({one, other}, one, 0); }), "scatter" + text);
  EXPECT_EQ(refused([&] { return reduce_scatter({one, other}, one); }), "reduce_scatter" + text);
  EXPECT_EQ(refused([&] {
              return sparse_all_reduce(other, Buffer(other.data(), 7, DataType::kFloat32),
                                       {.k = 3});
            }),
            "sparse_all_reduce of 5000 elements of float32 expected a residual of as many "
            "elements of float32; seen: 7 of float32");
}

}  // namespace
}  // namespace gtopk
