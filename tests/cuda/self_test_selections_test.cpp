// Which selections the self-test makes, on the GPU: a kernel that is wrong in one situation alone
// is found only if the self-test selects in that situation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "gtopk/detached.hpp"
#include "src/gpu/self_test.hpp"
#include "tests/cuda/kernels_gpu.hpp"

namespace gtopk::gpu {
namespace {

using sparse::testing::Gpu;

struct SelectionSeen {
  cuda::SelectCall call;
  bool residual = false;
  std::string situation{};  ///< once the stream has made the call
};

struct SelectionsSeen {
  cuda::PieceOf piece{};  ///< the first of the last vector
  std::deque<SelectionSeen> all{};
};
SelectionsSeen& selections_seen() {
  static SelectionsSeen seen;
  return seen;
}

std::string_view name_of(SelectionRule::Kind kind) {
  switch (kind) {
    case SelectionRule::Kind::kExact:
      return "exact";
    case SelectionRule::Kind::kNormal:
      return "gaussian";
    case SelectionRule::Kind::kSample:
      return "sampled";
    case SelectionRule::Kind::kThreshold:
      return "threshold";
    case SelectionRule::Kind::kBlocks:
      return "block";
  }
  return "unknown";
}

/// What there is of the last step's threshold, which is `next` if it is kept.
std::string_view last_threshold(double last, double next) {
  if (last == 0) {
    return ", no last one";
  }
  return next < last / 2 ? ", a last one that is far off" : ", a last one";
}

/// Of a call that has ended. Its report and its numbers lie in pinned memory.
std::string situation_of(const SelectionSeen& seen) {
  const cuda::SelectCall& call = seen.call;
  const SelectionRule& rule = call.rule;
  std::string text = fmt::format("{} of {}", name_of(rule.kind), call.acc.d);
  if (rule.kind == SelectionRule::Kind::kBlocks) {
    text += fmt::format(" by {}", rule.block);
  } else if (2 * rule.k > call.acc.d && call.acc.d > 1) {
    text += rule.k == call.acc.d ? ", all" : ", most";
  }
  if (!seen.residual) {
    text += ", no residual";
  }
  if (static_cast<const SelectionReport*>(call.report)->finite == 0) {
    return text + ", an infinity";
  }
  if (rule.kind == SelectionRule::Kind::kThreshold) {
    text += last_threshold(*call.state, *call.next);
  }
  return text;
}

int see_selection(const cuda::SelectCall& call, void* stream) {
  SelectionSeen& seen = selections_seen().all.emplace_back(
      SelectionSeen{.call = call, .residual = selections_seen().piece.residual != nullptr});
  const int error = Gpu::get().calls().select(call, stream);
  const auto describe = [](void* argument) {
    auto& one = *static_cast<SelectionSeen*>(argument);
    one.situation = situation_of(one);
  };
  const Driver& driver = Gpu::get().driver();
  driver.check(driver.launch_host_function(stream, describe, &seen), "call");
  return error;
}

TEST(SelfTestSelections, AreMadeOnceInEachSituation) {
  cuda::Calls kernels = Gpu::get().calls();
  kernels.number_tiles = [](cuda::PieceOf* pieces, std::uint32_t count) {
    selections_seen().piece = pieces[0];
    return Gpu::get().calls().number_tiles(pieces, count);
  };
  kernels.select = see_selection;
  selections_seen() = {};
  const SelfTestReport report =
      test_kernels(Gpu::get().driver(), kernels, DataType::kFloat32, Gpu::get().stream(),
                   SelfTest::kShort, std::chrono::seconds(60));
  EXPECT_THAT(report.failures, testing::IsEmpty());
  std::vector<std::string> situations;
  for (const SelectionSeen& one : selections_seen().all) {
    situations.push_back(one.situation);
  }
  // One element; several tiles; so many that an exact selection looks for candidates first.
  const std::vector<std::string> expected{
      "exact of 1",
      "exact of 4097",
      "exact of 4097, all",
      "exact of 4097, no residual",
      "exact of 4097, an infinity",
      "exact of 524289",
      "exact of 524289, most",
      "gaussian of 1",
      "gaussian of 4097",
      "gaussian of 4097, no residual",
      "gaussian of 4097, an infinity",
      "gaussian of 524289",
      "sampled of 4097",
      "sampled of 12291, no residual",
      "sampled of 4097, an infinity",
      "sampled of 524289",
      "threshold of 1, no last one",
      "threshold of 4097, a last one",
      "threshold of 4097, a last one that is far off",
      "threshold of 4097, an infinity",
      "threshold of 524289, a last one",
      "block of 4097 by 64",
      "block of 4097 by 64, an infinity",
      "block of 4097 by 1000, no residual",
      "block of 12291 by 5000",
      "block of 524289 by 4096",
  };
  EXPECT_THAT(situations, testing::UnorderedElementsAreArray(expected));
}

}  // namespace
}  // namespace gtopk::gpu
