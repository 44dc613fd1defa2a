// Engine: what the flight recorder keeps of operations that succeed, fail and hang, and its JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "gtopk/collectives.hpp"
#include "src/engine/flight_recorder.hpp"
#include "tests/support/inproc_ranks.hpp"

namespace gtopk {
namespace {

using engine::FlightEntry;
using engine::FlightRecorder;
using nlohmann::json;
using support::InprocRanks;
using support::SharedEnding;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr transport::Duration kWall = std::chrono::hours(1);

/// Two ranks, of which rank 0 is recorded.
class Recorded : public ::testing::Test {
 protected:
  Recorded() { ranks_.engine(0).observers().add(recorder_); }

  [[nodiscard]] engine::OperationSpec sum(std::uint32_t rank, std::uint64_t elements = 3) {
    return gtopk::all_reduce(values_[rank].data(), elements, DataType::kInt64);
  }
  /// On both ranks; all must succeed.
  void run_sums(int number) {
    for (int call = 0; call < number; ++call) {
      for (const SharedEnding& ending : ranks_.run([&](std::uint32_t rank) { return sum(rank); })) {
        ASSERT_TRUE(ending->good()) << ending->text();
      }
    }
  }
  [[nodiscard]] json record() const { return json::parse(json_of(recorder_.entries(), kWall)); }

  std::vector<std::vector<std::int64_t>> values_{2, std::vector<std::int64_t>(3)};
  int failures_ = 0;
  FlightRecorder recorder_{8, [this] { ++failures_; }};  // outlives the engines
  InprocRanks ranks_{2};
};

TEST_F(Recorded, Collective_HasSequenceNumberArgumentsAndTimes) {
  run_sums(2);
  const json all = record();
  ASSERT_EQ(all["entries"].size(), 2U);
  const json& second = all["entries"][1];
  EXPECT_EQ(second["record_id"], 1);
  EXPECT_EQ(second["process_group"], json({"default", ""}));
  EXPECT_EQ(second["collective_seq_id"], 2);
  EXPECT_EQ(second["profiling_name"], "gtopk:all_reduce");
  EXPECT_EQ(second["call"], "all_reduce(d=3, dtype=int64, op=SUM)");
  EXPECT_EQ(second["input_sizes"], json::parse("[[3]]"));
  EXPECT_EQ(second["input_dtypes"], json({"int64"}));
  EXPECT_EQ(second["state"], "completed");
  EXPECT_EQ(second["is_p2p"], false);
  EXPECT_EQ(second["timeout_ms"], 30000);
  EXPECT_FALSE(second.contains("error"));
  const std::int64_t created = second["time_created_ns"];
  EXPECT_GE(created, std::chrono::nanoseconds(kWall).count());
  EXPECT_GE(second["time_discovered_started_ns"], created);
  EXPECT_GE(second["time_discovered_completed_ns"], second["time_discovered_started_ns"]);
  EXPECT_EQ(all["pg_status"]["default"]["last_completed_collective"], 2);
  EXPECT_THAT(all["pg_config"]["default"]["members"].get<std::vector<std::string>>(),
              ElementsAre("rank 0 (host node0, pid 1000)", "rank 1 (host node1, pid 1001)"));
  EXPECT_EQ(failures_, 0);
}

TEST_F(Recorded, SizesAreElementsWhereTheAgreementCountsBytes) {
  for (const SharedEnding& ending :
       ranks_.run([&](std::uint32_t rank) { return gtopk::broadcast(values_[rank], 0); })) {
    ASSERT_TRUE(ending->good()) << ending->text();
  }
  EXPECT_EQ(record()["entries"][0]["input_sizes"], json::parse("[[3]]"));
}

TEST_F(Recorded, HangingOperation_IsStartedAndNextIsScheduled) {
  const SharedEnding hangs = ranks_.submit(0, sum(0));
  const SharedEnding waits = ranks_.submit(0, gtopk::barrier());
  ranks_.run_for(std::chrono::milliseconds(1));
  const json all = record();
  EXPECT_EQ(all["entries"][0]["state"], "started");
  EXPECT_EQ(all["entries"][0]["duration_ms"], nullptr);
  EXPECT_EQ(all["entries"][1]["state"], "scheduled");
  EXPECT_EQ(all["entries"][1]["time_discovered_started_ns"], nullptr);
  EXPECT_EQ(all["pg_status"]["default"]["last_enqueued_collective"], 2);
  EXPECT_EQ(all["pg_status"]["default"]["last_started_collective"], 1);
  EXPECT_EQ(all["pg_status"]["default"]["last_completed_collective"], -1);
  hangs->ignore("nobody else calls");
  waits->ignore("nobody else calls");
}

TEST_F(Recorded, OneThatFailsHasItsErrorAndIsToldOfAtOnce) {
  for (const SharedEnding& ending :
       ranks_.run([&](std::uint32_t rank) { return sum(rank, 2 + rank); })) {
    ASSERT_FALSE(ending->good());
  }
  const json entry = record()["entries"][0];
  EXPECT_EQ(entry["state"], "failed");
  EXPECT_EQ(entry["error_kind"], "mismatch");
  EXPECT_THAT(entry["error"].get<std::string>(), HasSubstr("all_reduce(d=3, dtype=int64, op=SUM)"));
  EXPECT_EQ(failures_, 1);
}

TEST_F(Recorded, AMessageHasItsBytesAndANumberOfItsOwn) {
  const auto bytes = [&](std::uint32_t rank) {
    return std::as_writable_bytes(std::span(values_[rank]));
  };
  run_sums(1);
  for (int message = 0; message < 2; ++message) {
    for (const SharedEnding& ending : ranks_.run([&](std::uint32_t rank) {
           return rank == 0 ? gtopk::send(bytes(0), 1, 7) : gtopk::recv(bytes(1), 0, 7);
         })) {
      ASSERT_TRUE(ending->good()) << ending->text();
    }
  }
  const json entry = record()["entries"][2];
  EXPECT_EQ(entry["is_p2p"], true);
  EXPECT_EQ(entry["p2p_seq_id"], 2);
  EXPECT_EQ(entry["profiling_name"], "gtopk:send(to 1, tag 7)");
  EXPECT_EQ(entry["bytes"], 24);
}

TEST_F(Recorded, TheLastOnesAreKeptInTheirOrder) {
  run_sums(21);
  std::vector<std::uint64_t> sequences;
  for (const FlightEntry& entry : recorder_.entries()) {
    sequences.push_back(entry.sequence);
  }
  EXPECT_THAT(sequences, ElementsAre(14, 15, 16, 17, 18, 19, 20, 21));
}

// Each group counts from 1, also where one of the same name was destroyed before it.
TEST_F(Recorded, StatusIsThatOfTheGroupOfItsNameThatWasCalledLast) {
  for (const int calls : {3, 1}) {
    const auto groups = ranks_.make_group("again", {0, 1});
    for (int call = 0; call < calls; ++call) {
      const SharedEnding mine = ranks_.submit(0, groups[0], sum(0));
      const SharedEnding theirs = ranks_.submit(1, groups[1], sum(1));
      ranks_.run_all();
      ASSERT_TRUE(mine->good() && theirs->good());
    }
  }
  const json status = record()["pg_status"]["again"];
  EXPECT_EQ(status["last_enqueued_collective"], 1);
  EXPECT_EQ(status["last_started_collective"], 1);
  EXPECT_EQ(status["last_completed_collective"], 1);
}

TEST_F(Recorded, OverwrittenEntry_IgnoresTheEndOfItsOperation) {
  const auto pair = ranks_.make_group("pair", {0, 1});
  const SharedEnding first = ranks_.submit(0, pair[0], sum(0));
  for (int call = 0; call < 9; ++call) {
    const SharedEnding mine = ranks_.submit(0, sum(0));
    const SharedEnding theirs = ranks_.submit(1, sum(1));
    ranks_.run_until([&] { return mine->ended && theirs->ended; });
    ASSERT_TRUE(mine->good() && theirs->good());
  }
  const SharedEnding second = ranks_.submit(1, pair[1], sum(1));
  ranks_.run_all();
  ASSERT_TRUE(first->good() && second->good());
  for (const FlightEntry& entry : recorder_.entries()) {
    EXPECT_EQ(entry.group->name, "default");
    EXPECT_TRUE(entry.ended.has_value());
  }
}

TEST(FlightRecorder, AddedLateRecordsWhatIsCalledFromThenOn) {
  FlightRecorder recorder(8);
  InprocRanks ranks(2);
  std::vector<std::int64_t> values(2);
  const auto sum = [&](std::uint32_t rank) {
    return gtopk::all_reduce(&values[rank], 1, DataType::kInt64);
  };
  const SharedEnding early = ranks.submit(0, sum(0));
  ranks.run_for(std::chrono::milliseconds(1));
  ranks.engine(0).observers().add(recorder);
  const SharedEnding late = ranks.submit(0, sum(0));
  for (int call = 0; call < 2; ++call) {
    const SharedEnding other = ranks.submit(1, sum(1));
    ranks.run_until([&] { return other->ended; });
    ASSERT_TRUE(other->good()) << other->text();
  }
  ranks.run_all();
  ASSERT_TRUE(early->good() && late->good());
  const std::vector<FlightEntry> entries = recorder.entries();
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].sequence, 2U);
  EXPECT_TRUE(entries[0].ended.has_value());
}

TEST(FlightRecorder, WithNothingRecordedIsWholeJson) {
  const json all = json::parse(engine::json_of({}, kWall));
  EXPECT_TRUE(all["entries"].empty());
  EXPECT_TRUE(all["pg_config"].empty());
}

}  // namespace
}  // namespace gtopk
