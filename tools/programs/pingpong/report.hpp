// gtopk-pingpong: what the measuring rank prints and writes to the file. It does not know the
// network.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/programs/pingpong/options.hpp"

namespace gtopk::programs::pingpong {

struct Row {
  std::string layer;
  std::uint64_t bytes = 0;
  std::vector<double> seconds;  ///< of one message, one way
  std::uint64_t wrong = 0;
};

class Report {
 public:
  explicit Report(const Plan& plan) : plan_(&plan) {}

  /// This and the other printing functions return false once stdout is closed.
  [[nodiscard]] bool begin(const std::vector<std::string>& lines);
  [[nodiscard]] bool line(const std::string& text) const;
  [[nodiscard]] bool add(const Row& row);
  /// Prints alpha and beta of each layer, for --mode lat and exchange.
  [[nodiscard]] bool end();
  [[nodiscard]] std::string json() const { return record_.dump(1); }

 private:
  const Plan* plan_;
  nlohmann::json record_;
  /// The bytes and p50 of each row, by layer.
  std::map<std::string, std::vector<std::pair<double, double>>> points_;
};

}  // namespace gtopk::programs::pingpong
