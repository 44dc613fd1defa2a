// Bootstrap: ranks of a job with a secret meet in a store that others can read and write, such as
// torch's. Ranks are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "gtopk/key_value_store.hpp"
#include "src/transport/bootstrap/meeting.hpp"
#include "src/transport/bootstrap/meeting_record.hpp"
#include "tests/support/memory_store.hpp"
#include "tests/transport/bootstrap/error_of.hpp"

namespace gtopk::meeting {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using transport::JobKey;

constexpr std::chrono::seconds kSealedLimit{60};
const std::string kSecret = "the secret of this job";
const std::string kOther = "the secret of that job";

/// What a stranger does to a store: he reads all that is written, and may replace what others find.
class OpenStore final : public KeyValueStore {
 public:
  using Replace = std::function<std::optional<std::string>(std::string_view key)>;

  void set(std::string_view key, std::string_view value) override {
    {
      const std::lock_guard lock(mutex_);
      written_ += value;
    }
    store_.set(key, value);
  }
  [[nodiscard]] std::optional<std::string> find(std::string_view key,
                                                std::chrono::nanoseconds at_most) override {
    auto found = store_.find(key, at_most);
    if (found && replace) {
      return replace(key).value_or(*found);
    }
    return found;
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return store_.add(key, delta);
  }
  void remove(std::string_view key) override { store_.remove(key); }

  /// All values that were ever set. No rank may be running.
  [[nodiscard]] const std::string& written() const { return written_; }
  Replace replace;

 private:
  support::MemoryStore store_;
  std::mutex mutex_;
  std::string written_;
};

Presence presence_of(std::uint32_t rank, std::uint32_t size) {
  return {.group = "g",
          .rank = rank,
          .size = size,
          .card = fmt::format("the card of rank {}", rank),
          .process = fmt::format("host node{0}, pid {0}", rank),
          .refusal = {}};
}

struct Met {
  Roll roll;
  std::string error;
};

/// A rank for each secret, all at once.
std::vector<Met> meet_with(OpenStore& store, const std::vector<std::string>& secrets) {
  std::vector<Met> all(secrets.size());
  std::vector<std::jthread> ranks;
  for (std::uint32_t rank = 0; rank < secrets.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        const auto key = JobKey::of(secrets[rank]);
        const auto size = static_cast<std::uint32_t>(secrets.size());
        all[rank].roll = meet(store, presence_of(rank, size), kSealedLimit, key.get());
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kBootstrap);
        all[rank].error = error.what();
      }
    });
  }
  ranks.clear();
  return all;
}

TEST(SealedMeeting, OfRanksWithOneSecret_showsNoCardToOthers) {
  OpenStore store;
  for (const Met& met : meet_with(store, {kSecret, kSecret, kSecret})) {
    EXPECT_EQ(met.error, "");
    EXPECT_THAT(met.roll, testing::ElementsAre("the card of rank 0", "the card of rank 1",
                                               "the card of rank 2"));
  }
  EXPECT_THAT(store.written(), Not(HasSubstr("the card of rank")));
  OpenStore open;
  meet_with(open, {"", "", ""});
  EXPECT_THAT(open.written(), HasSubstr("the card of rank"));
}

TEST(SealedMeeting, DifferentOrMissingSecret_IsOneErrorNamingBoth) {
  struct Case {
    std::vector<std::string> secrets;
    std::string text;
  };
  const std::string kBoth = "rank 1 (host node1, pid 1) has {}rank 0 (host node0, pid 0){}";
  for (const auto& [secrets, text] : std::vector<Case>{
           {{kSecret, kOther, kSecret},
            fmt::format(fmt::runtime(kBoth), "another secret than ", "")},
           {{kSecret, "", kSecret},
            fmt::format(fmt::runtime(kBoth), "no secret, but ", " has one")},
           {{"", kSecret, ""}, fmt::format(fmt::runtime(kBoth), "a secret, but ", " has none")},
       }) {
    OpenStore store;
    for (const Met& met : meet_with(store, secrets)) {
      EXPECT_EQ(met.error,
                fmt::format("group 'g': {}: set the same GTOPK_SECRET on all ranks", text));
    }
    for (std::size_t rank = 0; rank < secrets.size(); ++rank) {
      if (!secrets[rank].empty()) {
        EXPECT_THAT(store.written(), Not(HasSubstr(fmt::format("the card of rank {}", rank))));
      }
    }
  }
}

TEST(SealedMeeting, TableReplacedByStranger_IsAnErrorNotAGroup) {
  const auto encoded = [](const Table& table, std::string_view key, const std::string& secret) {
    return encode(table, key, JobKey::of(secret).get());
  };
  const Table forged{.failure = {}, .nonces = {1, 2}, .roll = {"a stranger's", "another"}};
  for (const std::string& secret : {std::string(), kOther, kSecret}) {
    OpenStore store;
    store.replace = [&](std::string_view key) -> std::optional<std::string> {
      // He knows no secret: what was sealed with it is from elsewhere.
      const std::string_view where = secret == kSecret ? "gtopk/table/0" : key;
      return key.starts_with("gtopk/table/") ? std::optional(encoded(forged, where, secret))
                                             : std::nullopt;
    };
    const std::vector<Met> met = meet_with(store, {kSecret, kSecret});
    EXPECT_THAT(met[1].error,
                AllOf(HasSubstr("was not written by a rank 0 with this rank's secret"),
                      HasSubstr("GTOPK_SECRET")));
  }
}

TEST(SealedMeeting, OfRanksWithoutASecret_writesWhatItAlwaysDid) {
  const Answer answer{.nonce = 7, .presence = presence_of(1, 2)};
  EXPECT_EQ(encode(answer),
            "1:2"
            "1:7"
            "1:1"
            "1:2"
            "18:the card of rank 1"
            "17:host node1, pid 1"
            "1:0"
            "0:");
  EXPECT_EQ(encode(Table{.failure = {}, .nonces = {7}, .roll = {"card"}}),
            "1:2"
            "1:0"
            "0:"
            "1:1"
            "1:7"
            "4:card");
}

TEST(SealedDirectory, ShowsNoAddressAndTakesNoneFromAStranger) {
  const auto store = std::make_shared<OpenStore>();
  const auto mine = directory_over(store, kSecret);
  mine->publish("gtopk/address/1", "the address of process 1");
  EXPECT_EQ(directory_over(store, kSecret)->lookup("gtopk/address/1", kSealedLimit),
            "the address of process 1");
  EXPECT_THAT(store->written(), Not(HasSubstr("address")));
  const auto lookup = [&](const std::string& secret) {
    return bootstrap::error_of([&] {
      static_cast<void>(directory_over(store, secret)->lookup("gtopk/address/1", kSealedLimit));
    });
  };
  EXPECT_THAT(lookup(kOther), AllOf(HasSubstr("gtopk/address/1"), HasSubstr("GTOPK_SECRET")));
  directory_over(store)->publish("gtopk/address/1", "a stranger's");
  EXPECT_THAT(lookup(kSecret), HasSubstr("outside of the job"));
  // A sealed address of another process.
  mine->publish("gtopk/address/2", "the address of process 2");
  const auto other = store->find("gtopk/address/2", kSealedLimit);
  store->set("gtopk/address/1", other.value_or(""));
  EXPECT_THAT(lookup(kSecret), HasSubstr("outside of the job"));
}

}  // namespace
}  // namespace gtopk::meeting
