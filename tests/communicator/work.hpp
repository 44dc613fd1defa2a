// Test support: one operation of each kind with memory of its own, large enough to
// travel in several messages, that knows its right result. It knows nothing of faults.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gtopk/communicator.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/calls.hpp"

namespace gtopk::test {

enum class Kind : std::uint8_t {
  kGtopk,
  kGtopkTree,
  kTopk,
  kDense,
  kAllReduce,
  kBarrier,
  kBroadcast,
};
inline constexpr std::array kKinds = {Kind::kGtopk,    Kind::kGtopkTree, Kind::kTopk,
                                      Kind::kDense,    Kind::kAllReduce, Kind::kBarrier,
                                      Kind::kBroadcast};

/// As errors name it: "sparse_all_reduce(gtopk)", "barrier".
[[nodiscard]] std::string name_of_operation(Kind kind);

/// A group's inputs to an operation and the right result: the same in every process forked from the
/// one that made it. Only the sparse kinds have a problem.
struct Plan {
  Plan(Kind kind, std::uint32_t ranks);

  Kind kind;
  std::uint32_t ranks;
  reference::Problem problem;
  reference::Outcome outcome;
};

/// One rank's part in one operation. It must outlive the operation.
class Work {
 public:
  Work(const Plan& plan, std::uint32_t rank);

  void submit(Communicator& group, Call call);
  /// Empty if the memory holds the right result, else what is wrong.
  [[nodiscard]] std::string wrong_result() const;
  /// Empty if a sparse kind has left tensor and residual as they were, as it does when it fails.
  [[nodiscard]] std::string touched() const;

 private:
  [[nodiscard]] bool sparse() const { return plan_->problem.d != 0; }

  const Plan* plan_;
  std::uint32_t rank_;
  support::Tensor tensor_;             ///< for sparse kinds
  std::vector<std::int32_t> numbers_;  ///< for all_reduce and broadcast
};

}  // namespace gtopk::test
