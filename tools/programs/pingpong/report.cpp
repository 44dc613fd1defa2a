#include "tools/programs/pingpong/report.hpp"

#include <fmt/format.h>

#include "gtopk_version.hpp"
#include "tools/programs/program.hpp"
#include "tools/programs/samples.hpp"

namespace gtopk::programs::pingpong {
namespace {

constexpr auto kColumns = "{:>9} {:>11} {:>8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12} {:>8}";

}  // namespace

bool Report::begin(const std::vector<std::string>& lines) {
  record_ = {{"program", "gtopk-pingpong"},
             {"version", kVersion},
             {"provenance", lines},
             {"mode", plan_->mode},
             {"window", plan_->window},
             {"memory", plan_->memory},
             {"rows", nlohmann::json::array()}};
  bool read = true;
  for (const std::string& text : lines) {
    read = read && line(text);
  }
  return read && print_line(fmt::format(fmt::runtime(kColumns), "layer", "size(B)", "rounds",
                                        "min(us)", "p50(us)", "p99(us)", "max(us)", "bw(GB/s)",
                                        "rate(msg/s)", "#wrong"));
}

bool Report::line(const std::string& text) const { return print_line("# " + text); }

bool Report::add(const Row& row) {
  const Summary time = summary(row.seconds);
  const auto bytes = static_cast<double>(row.bytes);
  points_[row.layer].emplace_back(bytes, time.p50);
  record_["rows"].push_back({{"layer", row.layer},
                             {"bytes", row.bytes},
                             {"samples_seconds", row.seconds},
                             {"wrong", row.wrong}});
  return print_line(
      fmt::format(fmt::runtime(kColumns), row.layer, row.bytes, row.seconds.size(),
                  fmt::format("{:.2f}", time.min * 1e6), fmt::format("{:.2f}", time.p50 * 1e6),
                  fmt::format("{:.2f}", time.p99 * 1e6), fmt::format("{:.2f}", time.max * 1e6),
                  fmt::format("{:.4f}", bytes / time.p50 * 1e-9),
                  fmt::format("{:.0f}", 1 / time.p50), row.wrong));
}

bool Report::end() {
  bool read = true;
  for (const auto& [layer, points] : points_) {
    if (plan_->mode == "bw" || points.size() < 2) {
      continue;
    }
    const Link link = fit(points);
    record_["links"][layer] = {{"alpha_seconds", link.alpha}, {"beta_seconds_per_byte", link.beta}};
    read = read && line(layer + ": " + described(link));
  }
  return read;
}

}  // namespace gtopk::programs::pingpong
