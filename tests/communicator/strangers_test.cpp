// Communicator: two jobs, one of which takes the other's address for that of one of its own ranks,
// as when a port has passed from an earlier job to another one. Both number their groups and
// operations alike, so tags are equal: what is sent to the wrong job must be dropped and logged
// there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/communicator.hpp"
#include "gtopk/key_value_store.hpp"
#include "src/transport/bootstrap/prefix_store.hpp"
#include "src/transport/ucx/address.hpp"
#include "tests/communicator/member.hpp"
#include "tests/support/forked_ranks.hpp"

namespace gtopk::test {
namespace {

using testing::HasSubstr;

constexpr std::string_view kVictim = "address of the victim";

/// One job's directory, in its own part of the store. It either leaks its rank 0's address to the
/// other job, or returns that address for every lookup.
class Mixed final : public Directory {
 public:
  Mixed(std::shared_ptr<KeyValueStore> whole, const std::string& job, bool tells, bool mistakes)
      : whole_(std::move(whole)),
        job_(std::make_shared<bootstrap::PrefixStore>(*whole_, job)),
        directory_(directory_over(job_)),
        tells_(tells),
        mistakes_(mistakes) {}

  void publish(std::string_view name, std::string_view address) override {
    directory_->publish(name, address);
    if (tells_) {
      whole_->set(kVictim, address);
    }
  }
  std::optional<std::string> lookup(std::string_view name,
                                    std::chrono::nanoseconds at_most) override {
    auto found = directory_->lookup(name, at_most);
    if (!found || !mistakes_) {
      return found;
    }
    transport::UcxAddress address = transport::decode_ucx_address(*found);
    address.worker = transport::decode_ucx_address(whole_->get(kVictim, kWatchdog)).worker;
    return encode(address);
  }
  std::vector<std::string> meet(const Presence& self, std::chrono::nanoseconds at_most) override {
    return directory_->meet(self, at_most);
  }

 private:
  std::shared_ptr<KeyValueStore> whole_;
  std::shared_ptr<KeyValueStore> job_;
  std::shared_ptr<Directory> directory_;
  bool tells_;
  bool mistakes_;
};

constexpr std::size_t kCount = 300'000;
constexpr std::size_t kBytes = 100'000;

/// A sparse and a dense all-reduce and two point-to-point messages to rank 0, all at once.
class Calls {
 public:
  Calls(Communicator& group, float value, std::optional<std::chrono::nanoseconds> timeout)
      : sparse_(kCount, value),
        dense_(kCount, value),
        long_(kBytes, std::byte{static_cast<unsigned char>(value)}),
        short_(8, std::byte{static_cast<unsigned char>(value)}) {
    const auto run = [&](Collective collective) {
      group.run(std::move(collective),
                pending_.emplace_back(std::make_unique<Pending>())->call(timeout));
    };
    run(gtopk::sparse_all_reduce(sparse_.data(), nullptr, kCount, DataType::kFloat32,
                                 {.k = kCount / 2}));
    run(gtopk::all_reduce(dense_.data(), kCount, DataType::kFloat32, ReduceOp::kSum));
    for (auto* const bytes : {&long_, &short_}) {
      run(group.rank() == 0 ? gtopk::recv(*bytes, 1, 7) : gtopk::send(*bytes, 0, 7));
    }
  }

  [[nodiscard]] std::vector<Ending> wait() const {
    std::vector<Ending> endings;
    for (const auto& each : pending_) {
      endings.push_back(each->wait());
    }
    return endings;
  }
  void expect_results(float sum, unsigned char received) const {
    EXPECT_THAT(dense_, testing::Each(sum));
    // Equal values: the first half is selected.
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(sparse_[i], i < kCount / 2 ? sum : 0.0F) << i;
    }
    EXPECT_THAT(long_, testing::Each(std::byte{received}));
    EXPECT_THAT(short_, testing::Each(std::byte{received}));
  }

 private:
  std::vector<float> sparse_;
  std::vector<float> dense_;
  std::vector<std::byte> long_;
  std::vector<std::byte> short_;
  std::vector<std::unique_ptr<Pending>> pending_;
};

class StrangersOver : public testing::TestWithParam<const char*> {};

TEST_P(StrangersOver, SendingToAnotherJob_FailsWithoutDisturbingIt) {
  const auto body = [](ForkedRank& self) {
    const std::shared_ptr<KeyValueStore> store = self.store();
    const bool victims = self.rank() < 2;
    const auto rank = static_cast<std::uint32_t>(self.rank() % 2);
    testing::internal::CaptureStderr();
    {
      const auto directory = std::make_shared<Mixed>(store, victims ? "victims/" : "strangers/",
                                                     self.rank() == 0, self.rank() == 3);
      Communicator group(
          Process::start(),
          {.directory = directory, .name = "group", .rank = rank, .size = 2, .timeout = kWatchdog});
      // The strangers' messages come first, while rank 0 waits for the same ones from rank 1.
      if (!victims) {
        static_cast<void>(store->get("rank 0 waits", kWatchdog));
      }
      // Rank 2's hello would tell rank 3 its address.
      if (self.rank() == 1 || self.rank() == 2) {
        static_cast<void>(store->get("the strangers are through", kWatchdog));
      }
      const std::optional<std::chrono::nanoseconds> timeout =
          victims ? std::nullopt
                  : std::optional<std::chrono::nanoseconds>(std::chrono::milliseconds(500));
      const Calls calls(group, static_cast<float>(1 + self.rank()), timeout);
      if (self.rank() == 0) {
        store->set("rank 0 waits", "");
      }
      const std::vector<Ending> endings = calls.wait();
      if (self.rank() == 3) {
        store->set("the strangers are through", "");
      }
      if (victims) {
        for (const Ending& ending : endings) {
          EXPECT_TRUE(ending.good()) << ending.text;
        }
        calls.expect_results(3.0F, 2);
      } else {
        EXPECT_FALSE(endings.front().good());
        EXPECT_FALSE(endings[1].good());
      }
    }
    const std::string said = testing::internal::GetCapturedStderr();
    const char* const dropped = "messages from outside this process's groups";
    if (self.rank() == 0) {
      EXPECT_THAT(said, HasSubstr(dropped));
    } else {
      EXPECT_THAT(said, testing::Not(HasSubstr(dropped)));
    }
  };
  run_forked_ranks(4, body, {.environment = {{"UCX_TLS", GetParam()}}});
}

INSTANTIATE_TEST_SUITE_P(Every, StrangersOver, testing::Values(kTcp, kSharedMemory),
                         [](const auto& instance) { return name_of_transport(instance.param); });

}  // namespace
}  // namespace gtopk::test
