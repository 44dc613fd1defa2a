// Tests of the programs: starts all ranks of one by hand, and collects their results.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/program.hpp"

namespace gtopk::test {

/// Rank 0 first.
inline std::vector<Program> started_by_hand(const std::string& path, std::uint32_t ranks,
                                            const std::vector<std::string>& arguments,
                                            const Program::Variables& environment = {}) {
  const std::string rendezvous = fmt::format("127.0.0.1:{}", free_port());
  std::vector<Program> all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> words = {"--rank",       std::to_string(rank),
                                      "--ranks",      std::to_string(ranks),
                                      "--rendezvous", rendezvous};
    words.insert(words.end(), arguments.begin(), arguments.end());
    all.emplace_back(path, words, environment);
  }
  return all;
}

inline std::vector<Ended> joined(std::vector<Program> programs) {
  std::vector<Ended> ended;
  for (Program& program : programs) {
    ended.push_back(program.join());
  }
  return ended;
}

/// A file that is removed with the test.
class JsonOutput {
 public:
  JsonOutput()
      : path_(std::filesystem::temp_directory_path() / fmt::format("gtopk-{}.json", getpid())) {}
  JsonOutput(const JsonOutput&) = delete;
  JsonOutput& operator=(const JsonOutput&) = delete;
  JsonOutput(JsonOutput&&) = delete;
  JsonOutput& operator=(JsonOutput&&) = delete;
  ~JsonOutput() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }

  [[nodiscard]] std::string path() const { return path_; }
  [[nodiscard]] nlohmann::json read() const {
    std::ifstream file(path_);
    return nlohmann::json::parse(file);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace gtopk::test
