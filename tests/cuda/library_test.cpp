// The library of the kernels: that it loads where there is no driver, has every kernel for every
// architecture that docs/devices.md names, and none that needs a stack. Nothing here runs on a GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/cuda/calls.hpp"

namespace gtopk::cuda {
namespace {

class Library : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(GTOPK_CUDA_LIBRARY).empty()) {
      GTEST_SKIP() << "the kernels for GPUs were not built: " << GTOPK_CUDA_MISSING;
    }
  }
};

TEST_F(Library, LoadsWithoutADriver) {
  void* const library = dlopen(GTOPK_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  using Get = const Calls* (*)();
  const auto get = reinterpret_cast<Get>(dlsym(library, "gtopk_cuda_calls"));
  ASSERT_NE(get, nullptr) << dlerror();
  const Calls* const calls = get();
  ASSERT_EQ(calls->version, Calls::kVersion);
  PieceOf pieces[2];
  pieces[0].size = 4097;
  pieces[1].size = 1;
  EXPECT_EQ(calls->number_tiles(pieces, 2), 3U);
  EXPECT_EQ(pieces[1].begin, 4097U);
  EXPECT_EQ(pieces[1].first_tile, 2U);
  VectorOf acc;
  acc.tiles = 3;
  acc.d = 4098;
  EXPECT_GT(calls->select_workspace_bytes(acc, {.k = 10, .most = 10}), acc.d * sizeof(float));
  SelectCall of_integers;
  of_integers.acc.dtype = DataType::kInt32;
  const int error = calls->select(of_integers, nullptr);
  EXPECT_STREQ(calls->error_name(error), "cudaErrorInvalidValue");
}

/// How often a file has code of a kind (PTX, machine code) for an architecture: as nvcc packs it,
/// in blocks of such parts, each with a header.
using Parts = std::map<std::pair<std::string, std::uint32_t>, int>;

Parts parts_in(const std::string& file) {
  static constexpr std::uint32_t kMagic = 0xBA55ED50U;
  const auto read = [&](std::size_t at, auto number) {
    std::memcpy(&number, file.data() + at, sizeof number);
    return number;
  };
  Parts parts;
  for (std::size_t block = 0; block + 16 <= file.size(); block += 8) {
    if (read(block, std::uint32_t{}) != kMagic || read(block + 6, std::uint16_t{}) != 16) {
      continue;
    }
    const std::size_t end = block + 16 + read(block + 8, std::uint64_t{});
    std::size_t part = block + 16;
    while (part + 64 <= end && end <= file.size()) {
      const bool is_ptx = read(part, std::uint16_t{}) == 1;
      ++parts[{is_ptx ? "ptx" : "code", read(part + 28, std::uint32_t{})}];
      part += read(part + 4, std::uint32_t{}) + read(part + 8, std::uint64_t{});
    }
  }
  return parts;
}

TEST_F(Library, HasEveryKernelForEveryArchitecture) {
  std::ifstream stream(GTOPK_CUDA_LIBRARY, std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), {}};
  // A source compiles for all or not at all: four of element types, that of sketches, and the one
  // that picks, without a kernel.
  constexpr int kSources = 6;
  const Parts expected{{{"code", 80}, kSources},
                       {{"code", 90}, kSources},
                       {{"code", 100}, kSources},
                       {{"code", 120}, kSources},
                       {{"ptx", 120}, kSources}};
  EXPECT_EQ(parts_in(file), expected);
  for (const char* kernel :
       {"Histogram",      "PickDigit",        "CountTiles",       "AddRuns",
        "WriteEntries",   "BeginSearch",      "BeginSweep",       "SweepCandidates",
        "ChooseRoute",    "OrderCandidates",  "Absorb",           "ClearAndDeliver",
        "PutBackDropped", "Accumulate",       "Gather",           "CommitWhole",
        "SumChunks",      "BeginFromMoments", "BeginFromSample",  "BeginFromState",
        "ListThresholds", "ByThresholds",     "CorrectThreshold", "LeaveState",
        "BeginBlocks",    "CutBlocks",        "AddBlocks",        "WriteBlocks",
        "FindLargest",    "AddToSketch",      "WriteCells",       "Estimate"}) {
    EXPECT_NE(file.find(kernel), std::string::npos) << kernel;
  }
}

/// What ptxas says of the kernels, file by file (cmake/GtopkCuda.cmake).
std::vector<std::string> reports() {
  std::vector<std::string> lines;
  for (const auto& file : std::filesystem::directory_iterator(
           std::filesystem::path(GTOPK_CUDA_LIBRARY).parent_path())) {
    if (file.path().extension() == ".ptxas") {
      std::ifstream stream(file.path());
      for (std::string line; std::getline(stream, line);) {
        lines.push_back(line);
      }
    }
  }
  return lines;
}

/// The text between `before` and `after`; empty if it has not both.
std::string between(const std::string& line, const std::string& before, const std::string& after) {
  const std::size_t begin = line.find(before);
  if (begin == std::string::npos) {
    return {};
  }
  const std::size_t end = line.find(after, begin + before.size());
  return end == std::string::npos ? std::string{}
                                  : line.substr(begin + before.size(), end - begin - before.size());
}

// Local memory, where stacks are, comes from a pool that the driver may have to enlarge, and then
// it waits for the device. A function that is called, such as one that calls itself, has properties
// of its own.
TEST_F(Library, HasNoKernelWithAStackFrameSpillsOrCalls) {
  std::map<std::string, int> kernels;  // of each architecture
  std::string kernel;
  for (const std::string& line : reports()) {
    if (const auto name = between(line, "Compiling entry function '", "'"); !name.empty()) {
      kernel = name;
      ++kernels[between(line, "' for '", "'")];
    } else if (line.find("Function properties for ") != std::string::npos) {
      EXPECT_TRUE(line.ends_with(" " + kernel)) << kernel << " calls a function: " << line;
    } else if (line.find(" bytes stack frame") != std::string::npos) {
      EXPECT_EQ(line, "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
          << kernel;
    } else if (const auto registers = between(line, "Used ", " registers"); !registers.empty()) {
      EXPECT_LE(std::stoi(registers), 40) << kernel << ": six blocks are to fit";
    }
  }
  EXPECT_EQ(kernels.size(), 4U);
  for (const auto& [architecture, count] : kernels) {
    EXPECT_GT(count, 100) << architecture;
    EXPECT_EQ(count, kernels.begin()->second) << architecture;
  }
}

}  // namespace
}  // namespace gtopk::cuda
