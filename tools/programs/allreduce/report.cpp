#include "tools/programs/allreduce/report.hpp"

#include <fmt/format.h>

#include "gtopk_version.hpp"
#include "tools/programs/program.hpp"
#include "tools/programs/samples.hpp"

namespace gtopk::programs::allreduce {
namespace {

constexpr auto kHeader =
    "{:>12} {:>9} {:>9} {:>8} {:>10} {:>9} {:>9} {:>12} {:>6} {:>11} {:>11} {:>11} {:>11} {:>11} "
    "{:>12} {:>11} {:>8} {:>8} {:>7} {:>10}";

std::string optional(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

std::uint64_t selected(const Setting& setting) {
  if (setting.sparse.k != 0) {
    return std::min(setting.sparse.k, setting.n);
  }
  return setting.sparse.selector == "block"
             ? selection_size(setting.n, setting.sparse.density, setting.sparse.block)
             : selection_size(setting.n, setting.sparse.density);
}

nlohmann::json json_of(const Row& row, std::uint64_t k) {
  const SparseOptions& sparse = row.setting.sparse;
  nlohmann::json record{{"algorithm", sparse.algorithm},
                        {"select", sparse.selector},
                        {"wire", sparse.wire},
                        {"dtype", to_string(row.setting.dtype)},
                        {"n", row.setting.n},
                        {"k", k},
                        {"put_back", to_string(sparse.put_back)},
                        {"bytes_wire", row.measured.bytes_sent},
                        {"samples_seconds", row.measured.seconds},
                        {"checksum", row.measured.checksum},
                        {"model_seconds", nullptr},
                        {"model_host_bytes", nullptr},
                        {"place", row.measured.place},
                        {"auto", row.automatic},
                        {"mass_error", nullptr},
                        {"wrong", row.wrong}};
  if (row.model) {
    record["model_seconds"] = row.model->seconds;
    record["model_host_bytes"] = row.model->host_bytes;
  }
  if (row.mass_error) {
    record["mass_error"] = *row.mass_error;
  }
  return record;
}

}  // namespace

bool Report::begin(const std::vector<std::string>& lines) {
  record_ = {{"program", "gtopk-allreduce"},
             {"version", kVersion},
             {"provenance", lines},
             {"rows", nlohmann::json::array()}};
  bool read = true;
  for (const std::string& line : lines) {
    read = read && print_line("# " + line);
  }
  const std::string header = fmt::format(
      fmt::runtime(kHeader), "algorithm", "select", "wire", "dtype", "n", "k", "density",
      "bytes_wire", "steps", "min(us)", "p50(us)", "p99(us)", "max(us)", "model(us)", "algbw(GB/s)",
      "wirebw(GB/s)", "model/t", "dense/t", "#wrong", "mass_error");
  const std::string shares = options_->verbose ? "  select exchange commit" : "";
  const std::string place = options_->memory == "cuda" ? "   place" : "";
  return read && print_line(header + shares + place);
}

std::optional<double> Report::dense_over(const Row& row, double p50) {
  const std::pair key(row.setting.n, row.setting.dtype);
  const SparseOptions& sparse = row.setting.sparse;
  const bool plain = sparse.wire == "raw" || sparse.wire == "lossless";
  if (sparse.algorithm == "dense" && plain) {
    dense_.emplace(key, p50);
  }
  const auto found = dense_.find(key);
  if (found == dense_.end()) {
    return std::nullopt;
  }
  return found->second / p50;
}

bool Report::add(const Row& row) {
  const SparseOptions& sparse = row.setting.sparse;
  const Summary time = summary(row.measured.seconds);
  const std::uint64_t k = selected(row.setting);
  const auto bytes = static_cast<double>(row.setting.n * size_of(row.setting.dtype));
  record_["rows"].push_back(json_of(row, k));
  std::optional<double> model;
  std::optional<double> ratio;
  if (row.model) {
    model = row.model->seconds * 1e6;
    ratio = row.model->seconds / time.p50;
  }
  std::string line = fmt::format(
      fmt::runtime(kHeader), sparse.algorithm, sparse.selector, sparse.wire,
      to_string(row.setting.dtype), row.setting.n, k,
      fmt::format("{:.4g}", static_cast<double>(k) / static_cast<double>(row.setting.n)),
      fmt::format("{:.0f}", row.measured.bytes_sent), row.measured.seconds.size(),
      fmt::format("{:.1f}", time.min * 1e6), fmt::format("{:.1f}", time.p50 * 1e6),
      fmt::format("{:.1f}", time.p99 * 1e6), fmt::format("{:.1f}", time.max * 1e6),
      optional(model, 1), fmt::format("{:.3f}", bytes / time.p50 * 1e-9),
      fmt::format("{:.4f}", row.measured.bytes_sent / time.p50 * 1e-9), optional(ratio, 2),
      optional(dense_over(row, time.p50), 2), row.wrong,
      row.mass_error ? fmt::format("{:.1e}", *row.mass_error) : "-");
  if (options_->verbose) {
    line += fmt::format("  {:>5.0f}% {:>7.0f}% {:>5.0f}%", 100 * row.measured.select_share,
                        100 * row.measured.exchange_share, 100 * row.measured.commit_share);
  }
  if (options_->memory == "cuda") {
    line += fmt::format(" {:>7}", row.measured.place);
  }
  if (!print_line(line)) {
    return false;
  }
  // Print it once for all algorithms, because it depends only on the rest of the setting.
  if (!options_->verbose || row.automatic == automatic_) {
    return true;
  }
  automatic_ = row.automatic;
  return print_line("# auto would take " + automatic_);
}

bool Report::end(const Costs& costs) {
  bool read = true;
  const auto tell = [&](const char* key, std::string_view where, const LinkCosts& link) {
    if (link.byte == 0) {
      return;  // no two ranks have such a link
    }
    record_["links"][key] = {{"alpha_seconds", link.message * 1e-9},
                             {"beta_seconds_per_byte", link.byte * 1e-9}};
    read = read &&
           print_line(fmt::format("# links {}: alpha {:.2f} us, beta {:.4f} ns/B ({:.3f} GB/s)",
                                  where, link.message * 1e-3, link.byte, 1 / link.byte));
  };
  record_["links"] = nlohmann::json::object();
  tell("within", "within hosts", costs.within);
  tell("between", "between hosts", costs.between);
  return read;
}

}  // namespace gtopk::programs::allreduce
