#include "tools/programs/info/findings.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "gtopk_version.hpp"
#include "src/collectives/routes.hpp"
#include "src/collectives/tree.hpp"
#include "src/engine/host_map.hpp"

namespace gtopk::programs::info {
namespace {

using Sentences = std::vector<std::string>;
using Cells = std::map<std::pair<std::uint32_t, std::uint32_t>, double>;

/// Links worse than the median by this factor are reported.
constexpr double kFar = 2;
constexpr std::size_t kFewestLinks = 3;  // fewest links for a meaningful median

std::string name_of(const Examined& job, std::uint32_t host) {
  return fmt::format("{} ({})", host, job.hosts[host].machine);
}

/// Returns the measured values, from the row's host to the column's.
Cells latencies(const Examined& job) {
  Cells cells;
  for (const Tested& each : job.pairs) {
    if (!each.error.empty()) {
      continue;
    }
    cells[{each.pair.from_host, each.pair.to_host}] = each.latency;
    cells[{each.pair.to_host, each.pair.from_host}] = each.latency;
  }
  return cells;
}

Cells bandwidths(const Examined& job) {
  Cells cells;
  for (const Tested& each : job.pairs) {
    if (!each.error.empty()) {
      continue;
    }
    cells[{each.pair.to_host, each.pair.from_host}] = each.back;
    cells[{each.pair.from_host, each.pair.to_host}] = each.forth;
  }
  return cells;
}

/// Returns the median over links between different hosts; nullopt if there are too few.
std::optional<double> median_of(const Cells& cells) {
  std::vector<double> values;
  for (const auto& [hosts, value] : cells) {
    if (hosts.first != hosts.second) {
      values.push_back(value);
    }
  }
  if (values.size() < kFewestLinks) {
    return std::nullopt;
  }
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void about_links(const Examined& job, Sentences& said) {
  const Cells latency = latencies(job);
  const Cells bandwidth = bandwidths(job);
  const auto usual_latency = median_of(latency);
  const auto usual_bandwidth = median_of(bandwidth);
  for (const auto& [hosts, value] : latency) {
    if (usual_latency && hosts.first < hosts.second && value > kFar * *usual_latency) {
      said.push_back(
          fmt::format("hosts {} and {}: latency {:.1f} us; the median of all is {:.1f} us",
                      name_of(job, hosts.first), name_of(job, hosts.second), value * 1e6,
                      *usual_latency * 1e6));
    }
  }
  for (const auto& [hosts, value] : bandwidth) {
    if (usual_bandwidth && hosts.first != hosts.second && value * kFar < *usual_bandwidth) {
      said.push_back(
          fmt::format("from host {} to host {}: {:.4f} GB/s; the median of all is {:.4f} GB/s",
                      name_of(job, hosts.first), name_of(job, hosts.second), value * 1e-9,
                      *usual_bandwidth * 1e-9));
    }
  }
}

/// Whether the data in flight at that rate nearly fills half of the buffers' memory, which is the
/// least data that they hold. The buffers may then limit the rate.
bool limited_by_buffers(double bytes_per_second, double round_trip, const LinkEnd& sender,
                        const LinkEnd& receiver) {
  constexpr double kNear = 0.8;
  const std::uint64_t held = std::min(sender.send_buffer, receiver.receive_buffer) / 2;
  return held != 0 && bytes_per_second * round_trip >= kNear * static_cast<double>(held);
}

/// Reports connections whose TCP settings do not suit their length; docs/hosts.md has the
/// measurements.
void about_tcp(const Examined& job, Sentences& said) {
  constexpr double kLong = 20e-3;  // round trip in seconds
  constexpr double kShort = 2e-3;
  for (const Tested& each : job.pairs) {
    const double round_trip = 2 * each.latency;
    if (!each.error.empty() || each.from_end.interface.empty() || round_trip == 0) {
      continue;
    }
    const std::string both = fmt::format("hosts {} and {}: ", name_of(job, each.pair.from_host),
                                         name_of(job, each.pair.to_host));
    const auto uses = [&](const char* control) {
      return each.from_end.congestion_control == control ||
             each.to_end.congestion_control == control;
    };
    if (round_trip >= kLong && (uses("cubic") || uses("reno"))) {
      said.push_back(fmt::format(
          "{}a round trip takes {:.1f} ms, and TCP's congestion control is {}: after a lost packet "
          "one connection takes seconds to recover its rate. More connections help "
          "(GTOPK_CONNECTIONS), or bbr on the route between them (ip route change ... congctl bbr)",
          both, round_trip * 1e3, uses("cubic") ? "cubic" : "reno"));
    }
    if (round_trip <= kShort && uses("bbr")) {
      said.push_back(fmt::format(
          "{}a round trip takes {:.2f} ms, and TCP's congestion control is bbr, under which single "
          "exchanges take up to twice as long there: sysctl "
          "net.ipv4.tcp_congestion_control=cubic, or congctl cubic on that route",
          both, round_trip * 1e3));
    }
    if (round_trip >= kLong &&
        (limited_by_buffers(each.forth, round_trip, each.from_end, each.to_end) ||
         limited_by_buffers(each.back, round_trip, each.to_end, each.from_end))) {
      said.push_back(fmt::format(
          "{}{:.1f} MB were in flight in a round trip of {:.1f} ms, about as much as TCP's buffers "
          "hold: larger ones may carry more (the last number of net.ipv4.tcp_rmem and "
          "net.ipv4.tcp_wmem, at least twice the link's rate times the round trip)",
          both, std::max(each.forth, each.back) * round_trip * 1e-6, round_trip * 1e3));
    }
  }
}

/// Reports containers of one machine that share less than they could.
void about_containers(const Examined& job, Sentences& said) {
  for (std::uint32_t a = 0; a < job.hosts.size(); ++a) {
    const Member& first = job.members[job.hosts[a].ranks.front()];
    for (const std::uint32_t rank : job.hosts[a].ranks) {
      const Member& other = job.members[rank];
      if (other.network == first.network || other.network == 0 || first.network == 0) {
        continue;
      }
      said.push_back(fmt::format(
          "ranks {} and {} of host {} share memory but no network: UCX cannot wake one when "
          "the other sends, so both keep polling. Give their containers one network "
          "(docker: --network=host)",
          job.hosts[a].ranks.front(), rank, name_of(job, a)));
      break;
    }
    for (std::uint32_t b = a + 1; b < job.hosts.size(); ++b) {
      const Member& second = job.members[job.hosts[b].ranks.front()];
      if (first.boot.empty() || first.boot != second.boot) {
        continue;
      }
      if (first.ipc == second.ipc || first.ipc == 0 || second.ipc == 0) {
        continue;
      }
      said.push_back(fmt::format(
          "hosts {} and {} are one machine whose ranks share no memory: one IPC namespace "
          "(docker: --ipc=host; Kubernetes: hostIPC) would let them",
          name_of(job, a), name_of(job, b)));
    }
  }
}

/// Returns how many lists of one step of `gtopk` cross the busiest host's link, one after another.
std::uint32_t lists_unplaced(const engine::HostMap& hosts) {
  const collectives::Routes routes(hosts);
  std::uint32_t lists = 2 * routes.fold().crossing;
  for (std::uint32_t round = 0; round < routes.tree().rounds(); ++round) {
    lists += routes.swap(round).crossing;
  }
  return lists;
}

/// Returns the same for `gtopk-placed`, in which a host's first rank represents the host.
std::uint32_t lists_placed(const engine::HostMap& hosts) {
  const collectives::Tree tree(hosts.hosts());
  return tree.rounds() + (tree.folds(0) ? 2 : 0);
}

/// Reports hosts of several ranks that could send one list over the link instead of several.
void about_placement(const Examined& job, Sentences& said) {
  if (job.hosts.size() < 2 || !absent(job).empty()) {
    return;
  }
  std::vector<std::string> host_of(job.members.size());
  for (std::uint32_t host = 0; host < job.hosts.size(); ++host) {
    for (const std::uint32_t rank : job.hosts[host].ranks) {
      host_of[rank] = std::to_string(host);
    }
  }
  const engine::HostMap hosts(host_of);
  const std::uint32_t unplaced = lists_unplaced(hosts);
  const std::uint32_t placed = lists_placed(hosts);
  if (hosts.hosts() < hosts.ranks() && placed < unplaced) {
    said.push_back(fmt::format(
        "as ranks lie on these hosts, a step of gtopk sends {} lists over a host's link, and one "
        "of gtopk-placed, which merges those of a host first, {}: prefer gtopk-placed or auto",
        unplaced, placed));
  }
}

/// Describes the ends; empty unless the pair uses TCP, and with the second end only if it differs.
std::string ends_of(const Tested& pair) {
  if (!pair.error.empty() || pair.from_end.interface.empty()) {
    return {};
  }
  const std::string from = to_text(pair.from_end);
  const std::string to = to_text(pair.to_end);
  return fmt::format("  {}{}", from, from == to ? "" : "; the other end: " + to);
}

std::vector<std::string> matrix(const Examined& job, const Cells& cells, const char* title,
                                const std::function<std::string(double)>& text) {
  std::string line = fmt::format("{:>13}", title);
  for (std::uint32_t to = 0; to < job.hosts.size(); ++to) {
    line += fmt::format(" {:>9}", to);
  }
  std::vector<std::string> lines = {line};
  for (std::uint32_t from = 0; from < job.hosts.size(); ++from) {
    line = fmt::format("{:>13}", from);
    for (std::uint32_t to = 0; to < job.hosts.size(); ++to) {
      const auto found = cells.find({from, to});
      const bool alone = from == to && job.hosts[from].ranks.size() == 1;
      line += fmt::format(" {:>9}", found != cells.end() ? text(found->second)
                                    : alone              ? "-"
                                                         : "failed");
    }
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

std::vector<std::uint32_t> absent(const Examined& job) {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    if (job.members[rank].version.empty()) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<std::string> failures(const Examined& job) {
  Sentences said;
  if (const auto ranks = absent(job); !ranks.empty()) {
    said.push_back(fmt::format("rank{} {} of {} {} not come", ranks.size() == 1 ? "" : "s",
                               fmt::join(ranks, ", "), job.members.size(),
                               ranks.size() == 1 ? "has" : "have"));
  }
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    const std::string& version = job.members[rank].version;
    if (version.empty() || version == job.members[0].version) {
      continue;
    }
    said.push_back(fmt::format("rank {} ({}) has gtopk {}, and rank 0 has {}", rank,
                               job.members[rank].machine, version, job.members[0].version));
  }
  for (const Tested& each : job.pairs) {
    if (each.error.empty()) {
      continue;
    }
    said.push_back(fmt::format("host {} and host {}, by ranks {} and {}: {}",
                               name_of(job, each.pair.from_host), name_of(job, each.pair.to_host),
                               each.pair.from, each.pair.to, each.error));
  }
  return said;
}

std::vector<std::string> findings(const Examined& job) {
  Sentences said;
  about_links(job, said);
  about_tcp(job, said);
  about_containers(job, said);
  about_placement(job, said);
  return said;
}

std::vector<std::string> text_of(const Examined& job) {
  std::vector<std::string> lines = {"hosts"};
  for (std::uint32_t host = 0; host < job.hosts.size(); ++host) {
    lines.push_back(fmt::format("  {:<3} {}: rank{} {}", host, job.hosts[host].machine,
                                job.hosts[host].ranks.size() == 1 ? "" : "s",
                                fmt::join(job.hosts[host].ranks, ", ")));
  }
  const auto append = [&](const std::vector<std::string>& more) {
    lines.emplace_back();
    lines.insert(lines.end(), more.begin(), more.end());
  };
  append(matrix(job, latencies(job), "latency(us)",
                [](double seconds) { return fmt::format("{:.2f}", seconds * 1e6); }));
  append(matrix(job, bandwidths(job), "bw(GB/s)",
                [](double rate) { return fmt::format("{:.4f}", rate * 1e-9); }));
  lines.emplace_back();
  lines.emplace_back("transports");
  for (const Tested& each : job.pairs) {
    lines.push_back(fmt::format("  {:>3} - {:<3} {}{}", each.pair.from_host, each.pair.to_host,
                                each.error.empty() ? each.transports : "failed", ends_of(each)));
  }
  const auto list = [&](const char* title, const Sentences& sentences) {
    if (!sentences.empty()) {
      lines.emplace_back(title);
    }
    for (const std::string& each : sentences) {
      lines.push_back("  - " + each);
    }
  };
  list("failed", failures(job));
  list("advice", findings(job));
  return lines;
}

nlohmann::json json_of(const Examined& job) {
  nlohmann::json hosts = nlohmann::json::array();
  for (const Host& each : job.hosts) {
    hosts.push_back({{"machine", each.machine}, {"ranks", each.ranks}});
  }
  nlohmann::json rows = nlohmann::json::array();
  for (const Tested& each : job.pairs) {
    nlohmann::json row = {{"hosts", {each.pair.from_host, each.pair.to_host}},
                          {"ranks", {each.pair.from, each.pair.to}}};
    if (each.error.empty()) {
      row.update({{"transports", each.transports},
                  {"latency_seconds", each.latency},
                  {"bytes_per_second", {each.forth, each.back}}});
      if (!each.from_end.interface.empty()) {
        row["ends"] = {each.from_end, each.to_end};
      }
    } else {
      row["error"] = each.error;
    }
    rows.push_back(std::move(row));
  }
  return {
      {"program", "gtopk-info --doctor"}, {"version", kVersion},    {"ranks", job.members.size()},
      {"hosts", std::move(hosts)},        {"absent", absent(job)},  {"rows", std::move(rows)},
      {"failed", failures(job)},          {"advice", findings(job)}};
}

}  // namespace gtopk::programs::info
