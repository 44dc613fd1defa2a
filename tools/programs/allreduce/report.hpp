// gtopk-allreduce: what rank 0 prints and writes to the file. It does not know groups.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/programs/allreduce/measure.hpp"
#include "tools/programs/allreduce/options.hpp"

namespace gtopk::programs::allreduce {

struct Row {
  Setting setting;
  Measurement measured;
  std::optional<Prediction> model{};   ///< if the algorithm has one
  std::string automatic{};             ///< what `auto` would choose for this call, and why
  std::optional<double> mass_error{};  ///< only with --check
  std::uint64_t wrong = 0;             ///< wrong elements with --check, wrong ranks without
};

class Report {
 public:
  explicit Report(const Options& options) : options_(&options) {}

  /// Prints lines of provenance. This and the other printing functions return false once stdout is
  /// closed.
  [[nodiscard]] bool begin(const std::vector<std::string>& lines);
  [[nodiscard]] bool add(const Row& row);
  /// Prints alpha and beta of the job's two kinds of links, after the rows.
  [[nodiscard]] bool end(const Costs& costs);
  [[nodiscard]] std::string json() const { return record_.dump(1); }

 private:
  [[nodiscard]] std::optional<double> dense_over(const Row& row, double p50);

  const Options* options_;
  std::string automatic_;  ///< the text that was last printed
  nlohmann::json record_;
  /// The p50 of dense, by elements and type.
  std::map<std::pair<std::uint64_t, DataType>, double> dense_;
};

}  // namespace gtopk::programs::allreduce
