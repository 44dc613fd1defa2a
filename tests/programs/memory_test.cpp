// Tests of --memory cuda: both programs over the fake device (tests/torch/fake), whose memory
// crashes whoever touches it without a copy: the results, and what was asked of the driver, in
// order. And that nobody loads a driver who did not ask for a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/programs/started.hpp"

namespace gtopk::test {
namespace {

using testing::AllOf;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

/// What the fake was called for, by process; in a folder that is removed with the test.
class Record {
 public:
  Record()
      : folder_(std::filesystem::temp_directory_path() / fmt::format("gtopk-calls-{}", getpid())) {
    std::filesystem::create_directory(folder_);
  }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;
  Record(Record&&) = delete;
  Record& operator=(Record&&) = delete;
  ~Record() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  /// For programs that find the fake where a GPU's driver and kernels would be.
  [[nodiscard]] Program::Variables with_gpu(const std::string& kernels = FAKE_GPU) const {
    return {{"GTOPK_CUDA_DRIVER", FAKE_GPU},
            {"GTOPK_CUDA_KERNELS", kernels},
            {"FAKE_DEVICE_CALLS", (folder_ / "calls").string()}};
  }
  [[nodiscard]] bool exists(pid_t process) const {
    return std::filesystem::exists(path_of(process));
  }
  /// Without the first `skipped`.
  [[nodiscard]] Words calls(pid_t process, std::size_t skipped = 0) const {
    std::ifstream file(path_of(process));
    Words all;
    for (std::string line; std::getline(file, line);) {
      all.push_back(line);
    }
    EXPECT_GE(all.size(), skipped);
    all.erase(all.begin(),
              all.begin() + static_cast<std::ptrdiff_t>(std::min(skipped, all.size())));
    return all;
  }

 private:
  [[nodiscard]] std::filesystem::path path_of(pid_t process) const {
    return folder_ / fmt::format("calls.{}", process);
  }

  std::filesystem::path folder_;
};

struct Ran {
  std::vector<pid_t> processes;
  std::vector<Ended> ended;
};

Ran run(const std::string& program, std::uint32_t ranks, const Words& arguments,
        const Program::Variables& environment) {
  std::vector<Program> programs = started_by_hand(program, ranks, arguments, environment);
  Ran all;
  for (const Program& each : programs) {
    all.processes.push_back(each.process());
  }
  all.ended = joined(std::move(programs));
  for (const Ended& each : all.ended) {
    EXPECT_EQ(each.code, 0) << each.err;
    EXPECT_EQ(each.err, "");
  }
  return all;
}

/// `times` times, one after the other.
Words repeated(const Words& calls, std::size_t times) {
  Words all;
  for (std::size_t i = 0; i < times; ++i) {
    all.insert(all.end(), calls.begin(), calls.end());
  }
  return all;
}

TEST(AllreduceOnAGpu, EveryStepPlace_EqualsSequentialReference) {
  const Record record;
  const JsonOutput output;
  const Ran all = run(ALLREDUCE, 2, {"-m",         "cuda",
                                     "-b",         "1",
                                     "-e",         "9000",
                                     "-f",         "9000",
                                     "-n",         "2",
                                     "-w",         "1",
                                     "-a",         "dense,gtopk,topk,true-topk,random-k,sketch",
                                     "--select",   "exact,gaussian,sampled,threshold",
                                     "--dtype",    "float32,bfloat16",
                                     "--density",  "0.01",
                                     "--check",    "--json",
                                     output.path()},
                      record.with_gpu());
  EXPECT_THAT(all.ended[0].out, HasSubstr("# GPU 0, a fake: selects, sums and commits"));
  std::size_t on_device = 0;
  const nlohmann::json json = output.read();
  ASSERT_FALSE(json["rows"].empty());
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["wrong"], 0) << row;
    EXPECT_NE(row["place"], "host") << row;
    const bool selects = row["algorithm"] == "gtopk" || row["algorithm"] == "topk";
    if (selects && row["n"] == 1) {  // its lists may be longer than the tensor
      EXPECT_EQ(row["place"], "staged") << row;
    } else {
      EXPECT_EQ(row["place"], "device") << row;
      ++on_device;
    }
  }
  EXPECT_EQ(on_device, 2UL * 4 * (6 + 4));  // types, selectors, algorithms of both sizes
}

TEST(AllreduceOnAGpu, HasTheSameBitsAsOnTheHost) {
  const Record record;
  const Words words = {"-b", "10000", "-e", "10000", "-n", "3", "-w", "0", "-a", "gtopk,dense"};
  std::vector<nlohmann::json> rows;
  const auto add = [&](Words more, const Program::Variables& environment) {
    const JsonOutput output;
    more.insert(more.end(), words.begin(), words.end());
    more.insert(more.end(), {"--json", output.path()});
    run(ALLREDUCE, 3, more, environment);
    rows.push_back(output.read()["rows"]);
  };
  add({}, {});
  add({"-m", "cuda"}, record.with_gpu());
  add({"-m", "cuda"}, record.with_gpu("none"));
  for (const std::size_t row : {0, 1}) {
    EXPECT_EQ(rows[0][row]["checksum"], rows[1][row]["checksum"]) << rows[1][row];
    EXPECT_EQ(rows[0][row]["checksum"], rows[2][row]["checksum"]) << rows[2][row];
    EXPECT_EQ(rows[0][row]["place"], "host");
    EXPECT_EQ(rows[2][row]["place"], "staged");
  }
  EXPECT_EQ(rows[1][0]["place"], "device");
  EXPECT_EQ(rows[1][1]["place"], "device");
}

TEST(AllreduceOnAGpu, CopiesNothingOfTheTensorsSizeInAStep) {
  const Record record;
  constexpr std::size_t kSteps = 3;
  const Ran all =
      run(ALLREDUCE, 2,
          {"-m", "cuda", "-b", "10000", "-e", "10000", "-n", std::to_string(kSteps), "-w", "0"},
          record.with_gpu());
  Words expected = {"set_current", "copy_in", "synchronize_stream",  // the residual
                    "copy_in", "synchronize_stream"};                // the table
  const Words step = repeated({"copy_in", "synchronize_stream",  // the next gradient, unmeasured
                               "select", "host_function",        // the operation may start
                               "commit", "synchronize_stream"},
                              kSteps);
  expected.insert(expected.end(), step.begin(), step.end());
  // To look at the result.
  expected.insert(expected.end(), {"copy_out", "copy_out", "synchronize_stream"});
  expected.insert(expected.end(), {"synchronize_stream", "release_context"});  // it goes
  for (const pid_t process : all.processes) {
    EXPECT_THAT(record.calls(process), ElementsAreArray(expected));
  }
}

TEST(AllreduceOnAGpu, SaysWhyAStepCouldNotBeEnqueued) {
  const Record record;
  for (const auto& [algorithm, call] : std::vector<std::pair<std::string, std::string>>{
           {"random-k", "gather"}, {"sketch", "sketch"}, {"sketch", "find"}}) {
    Program::Variables environment = record.with_gpu();
    environment.emplace_back("FAKE_DEVICE_FAILS", call);
    for (const Ended& each : joined(started_by_hand(
             ALLREDUCE, 2, {"-m", "cuda", "-b", "9000", "-e", "9000", "-n", "2", "-a", algorithm},
             environment))) {
      EXPECT_EQ(each.code, 1) << call << each.err;
      EXPECT_THAT(each.err, HasSubstr("a fake cannot")) << call;
    }
  }
}

TEST(AllreduceOnAGpu, EndsWithAGpuThatFails) {
  const Record record;
  Program::Variables environment = record.with_gpu();
  environment.emplace_back("FAKE_DEVICE_FAILS_AT", "host_function");  // the input never comes
  for (const Ended& each : joined(started_by_hand(
           ALLREDUCE, 2, {"-m", "cuda", "-b", "9000", "-e", "9000", "-n", "2"}, environment))) {
    EXPECT_EQ(each.code, 1) << each.err;
    EXPECT_THAT(each.err, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  }
}

const Words kShortRun = {"-m", "cuda", "-b", "1",  "-e", "200000", "-f",
                         "64", "-n",   "10", "-w", "2",  "--check"};

class ModesOnAGpu : public testing::TestWithParam<const char*> {};

TEST_P(ModesOnAGpu, MoveEveryByteThroughBothLayers) {
  const Record record;
  const JsonOutput output;
  Words words = {"--mode",  GetParam(), "--window", "5",
                 "--chunk", "60000",    "--json",   output.path()};
  words.insert(words.end(), kShortRun.begin(), kShortRun.end());
  const Ran all = run(PINGPONG, 2, words, record.with_gpu());
  const nlohmann::json json = output.read();
  EXPECT_EQ(json["memory"], "cuda");
  ASSERT_EQ(json["rows"].size(), 2UL * 4);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["wrong"], 0) << row;
  }
  EXPECT_THAT(all.ended[0].out, HasSubstr("; GPU 0, a fake: through pinned memory\n"));
}

TEST_P(ModesOnAGpu, GiveUcxTheDevicesMemoryIfToldTo) {
  const Record record;
  const JsonOutput output;
  Words words = {"--mode", GetParam(), "--window", "5", "--json", output.path()};
  words.insert(words.end(), kShortRun.begin(), kShortRun.end());
  Program::Variables environment = record.with_gpu();
  environment.emplace_back("GTOPK_DEVICE_POINTERS", "host");
  environment.emplace_back("FAKE_DEVICE_OPEN", "1");  // UCX reads and writes it where it is
  const Ran all = run(PINGPONG, 2, words, environment);
  const nlohmann::json json = output.read();
  ASSERT_FALSE(json["rows"].empty());
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["wrong"], 0) << row;
  }
  EXPECT_THAT(all.ended[0].out,
              AllOf(HasSubstr("; GPU 0, a fake: handed to UCX\n"),
                    HasSubstr("; GPU 0, a fake: handed to UCX if longer than 8160 bytes\n")));
}

INSTANTIATE_TEST_SUITE_P(Each, ModesOnAGpu, testing::Values("lat", "exchange", "bw"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(PingpongOnAGpu, CopiesEachMessageOnceOnEachSide) {
  const Record record;
  const Ran all =
      run(PINGPONG, 2,
          {"-m", "cuda", "-b", "9000", "-e", "9000", "-n", "3", "-w", "0", "--layer", "calls"},
          record.with_gpu());
  const Words made = {"set_current", "copy_in", "synchronize_stream",  // what is sent
                      "copy_in", "synchronize_stream"};                // where is received
  const Words sends = {"copy_out", "synchronize_stream"};
  const Words receives = {"copy_in", "synchronize_stream"};
  const auto expect = [&](pid_t process, const Words& first, const Words& then) {
    Words round = first;
    round.insert(round.end(), then.begin(), then.end());
    Words expected = made;
    const Words rounds = repeated(round, 3);
    expected.insert(expected.end(), rounds.begin(), rounds.end());
    expected.emplace_back("release_context");
    EXPECT_THAT(record.calls(process), ElementsAreArray(expected));
  };
  expect(all.processes[0], sends, receives);
  expect(all.processes[1], receives, sends);
}

TEST(PingpongOnAGpu, BothRanksSayWhichOfThemHasNone) {
  const Record record;
  const std::string port = std::to_string(free_port());
  Program with(PINGPONG, {"--listen", port}, record.with_gpu());
  Program without(PINGPONG, {"127.0.0.1:" + port, "-m", "cuda"},
                  {{"GTOPK_CUDA_DRIVER", "/nowhere/libcuda.so.1"}});
  const Ended ended = without.join();
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("gtopk-pingpong: rank 1: --memory cuda: GPU memory needs"));
  const Ended served = with.join();
  EXPECT_EQ(served.code, 1);
  EXPECT_THAT(served.err,
              HasSubstr("gtopk-pingpong: rank 0: rank 1: --memory cuda: GPU memory needs"));
  for (const Ended& each : {ended, served}) {
    EXPECT_EQ(std::ranges::count(each.err, '\n'), 1) << each.err;
  }
}

TEST(WithoutAGpu, NoDriverIsLoaded) {
  const Record record;
  const Ran reduced = run(ALLREDUCE, 1, {"-b", "64", "-e", "64", "-n", "1"}, record.with_gpu());
  EXPECT_FALSE(record.exists(reduced.processes[0]));
  const Ran sent = run(PINGPONG, 2, {"-b", "8", "-e", "8", "-n", "1"}, record.with_gpu());
  EXPECT_FALSE(record.exists(sent.processes[0]));
  // The record of one that loads it is there.
  const Ran asked =
      run(ALLREDUCE, 1, {"-m", "cuda", "-b", "64", "-e", "64", "-n", "1"}, record.with_gpu());
  EXPECT_TRUE(record.exists(asked.processes[0]));
}

}  // namespace
}  // namespace gtopk::test
