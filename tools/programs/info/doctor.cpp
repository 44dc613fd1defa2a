#include "tools/programs/info/doctor.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "gtopk_version.hpp"
#include "src/communicator/host_name.hpp"
#include "src/transport/bootstrap/prefix_store.hpp"
#include "src/transport/ucx/host_identity.hpp"
#include "tools/programs/info/findings.hpp"
#include "tools/programs/info/link_end.hpp"
#include "tools/programs/info/pairs.hpp"
#include "tools/programs/pingpong/measure.hpp"
#include "tools/programs/pingpong/wire.hpp"
#include "tools/programs/program.hpp"
#include "tools/programs/samples.hpp"

namespace gtopk::programs::info {
namespace {

using nlohmann::json;
using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

/// A link that has not moved a message within this time does not work.
constexpr nanoseconds kLongestMessage = std::chrono::seconds(10);
/// The time in addition to the messages: both sides start UCX, and closing takes 5 s if the other
/// side is gone.
constexpr nanoseconds kAround = std::chrono::seconds(15);

constexpr std::uint64_t kShort = 8;
constexpr std::uint64_t kLong = 256UL << 10U;
const pingpong::Plan kLatency = {.rounds = 200, .warm_up = 20, .mode = "lat"};
/// Ten rounds run because sizes are above 64 KiB.
const pingpong::Plan kBandwidth = {.rounds = 100, .warm_up = 1, .mode = "bw", .window = 8};

Member this_member() {
  const char* const named = std::getenv("GTOPK_HOST");
  const transport::HostIdentity place = transport::host_identity_of_this_process();
  transport::PeerInfo self{.host = machine_name(), .place = place};
  return {.version = kVersion,
          .machine = named != nullptr && *named != '\0' ? named : machine_name(),
          .host = host_name(self, ""),
          .boot = place.boot,
          .network = place.network_namespace,
          .ipc = place.ipc_namespace};
}

std::string to_text(const Member& member) {
  return json{member.version, member.machine, member.host, member.boot, member.network, member.ipc}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Member member_from(const json& fields) {
  return {.version = fields.at(0),
          .machine = fields.at(1),
          .host = fields.at(2),
          .boot = fields.at(3),
          .network = fields.at(4),
          .ipc = fields.at(5)};
}

/// The measurements of one rank of a pair: the lower rank measures latency and forward bandwidth,
/// and the other rank the bandwidth back.
struct Half {
  std::string transports{};
  double latency = 0;
  double bandwidth = 0;
  LinkEnd end{};
  std::string error{};
};

class Doctor {
 public:
  explicit Doctor(const JobOptions& options)
      : timeout_(timeout_of(options)), environment_(launched(options)) {
    if (environment_.world_size < 2) {
      throw UsageError(
          "--doctor tests pairs of ranks, and there is one: start several by a launcher, or by "
          "hand with --rank, --ranks and --rendezvous");
    }
    store_ = join(environment_, timeout_);
  }

  [[nodiscard]] std::uint32_t rank() const { return environment_.rank; }

  Examined examine() {
    meet();
    const std::vector<Round> rounds = rounds_of(job_.hosts);
    for (std::size_t number = 0; number < rounds.size(); ++number) {
      begin_together(number);
      for (const Pair& pair : rounds[number]) {
        const bool mine = pair.from == rank() || pair.to == rank();
        if (mine && !silent_one(pair)) {
          report(pair, measured(pair));
        }
      }
      if (rank() != 0) {
        continue;
      }
      const auto until = Clock::now() + link_limit() + kAround;
      for (const Pair& pair : rounds[number]) {
        job_.pairs.push_back(collected(pair, until));
      }
    }
    const auto by_hosts = [](const Tested& a, const Tested& b) {
      return std::pair(a.pair.from_host, a.pair.to_host) <
             std::pair(b.pair.from_host, b.pair.to_host);
    };
    std::sort(job_.pairs.begin(), job_.pairs.end(), by_hosts);
    begin_together(rounds.size());  // no rank leaves before all may leave
    return job_;
  }

 private:
  /// Waits until all have come: rank 0 waits for them, and tells the others which ranks have come.
  void meet() {
    store_->set(fmt::format("doctor/member/{}", rank()), to_text(this_member()));
    std::vector<std::string> texts(environment_.world_size);
    if (rank() == 0) {
      const auto until = Clock::now() + timeout_;
      for (std::uint32_t each = 0; each < texts.size(); ++each) {
        const nanoseconds left = std::max<nanoseconds>(until - Clock::now(), nanoseconds{0});
        texts[each] = store_->find(fmt::format("doctor/member/{}", each), left).value_or("");
      }
      store_->set("doctor/roster", json(texts).dump());
    } else {
      json::parse(store_->get("doctor/roster", timeout_ + kAround)).get_to(texts);
      if (texts[rank()].empty()) {
        throw std::runtime_error("this rank came too late: the others go on without it");
      }
    }
    std::vector<std::string> names;
    std::vector<std::string> machines;
    for (const std::string& text : texts) {
      job_.members.push_back(text.empty() ? Member{} : member_from(json::parse(text)));
      names.push_back(job_.members.back().host);
      machines.push_back(job_.members.back().machine);
    }
    job_.hosts = hosts_of(names, machines);
  }

  [[nodiscard]] nanoseconds link_limit() const { return std::min(timeout_, kLongestMessage); }

  /// Returns on all ranks once rank 0 has collected the last round's results. All ranks then know
  /// which ranks have not answered so far and do not ask those again, because each of them would
  /// cost every round its whole timeout.
  void begin_together(std::size_t round) {
    const std::string key = fmt::format("doctor/round/{}", round);
    if (rank() == 0) {
      store_->set(key, json(silent_).dump());
    } else {
      // Every message of a round may take its full time.
      json::parse(store_->get(key, timeout_ + 2 * (link_limit() + kAround))).get_to(silent_);
    }
  }

  [[nodiscard]] std::optional<std::uint32_t> silent_one(const Pair& pair) const {
    const auto found = std::find_if(silent_.begin(), silent_.end(), [&](std::uint32_t each) {
      return each == pair.from || each == pair.to;
    });
    return found == silent_.end() ? std::nullopt : std::optional(*found);
  }

  Half measured(const Pair& pair) {
    const bool lower = rank() == pair.from;
    pingpong::Ends ends{environment_,
                        std::make_shared<bootstrap::PrefixStore>(
                            *store_, fmt::format("doctor/pair/{}/{}/", pair.from, pair.to)),
                        link_limit()};
    ends.environment.rank = lower ? 0 : 1;
    Half half;
    try {
      const std::unique_ptr<pingpong::Wire> wire = pingpong::message_wire(ends, 0);
      pingpong::Player latency(*wire, kLatency, lower);
      latency.reserve(kShort);
      half.latency = summary(latency.measure()).p50;
      half.transports = wire->lanes();
      for (const bool forth : {true, false}) {
        pingpong::Player bandwidth(*wire, kBandwidth, forth == lower);
        bandwidth.reserve(kLong);
        const double seconds = summary(bandwidth.measure()).p50;
        if (forth == lower) {
          half.bandwidth = static_cast<double>(kLong) / seconds;
        }
      }
      half.end = link_end_here(half.transports);
    } catch (const std::exception& error) {
      half.error = error.what();
    }
    return half;
  }

  static std::string key_of(const Pair& pair, std::uint32_t rank) {
    return fmt::format("doctor/tested/{}/{}/{}", pair.from, pair.to, rank);
  }

  void report(const Pair& pair, const Half& half) {
    const json fields = {half.transports, half.latency, half.bandwidth, half.end, half.error};
    store_->set(key_of(pair, rank()), fields.dump(-1, ' ', false, json::error_handler_t::replace));
  }

  /// Returns a rank's half, or nullopt if the rank does not answer in time.
  std::optional<Half> half_of(const Pair& pair, std::uint32_t rank, Clock::time_point until) {
    const nanoseconds left = std::max<nanoseconds>(until - Clock::now(), nanoseconds{0});
    const auto text = store_->find(key_of(pair, rank), left);
    if (!text) {
      return std::nullopt;
    }
    const json fields = json::parse(*text);
    return Half{fields.at(0), fields.at(1), fields.at(2), fields.at(3), fields.at(4)};
  }

  Tested collected(const Pair& pair, Clock::time_point until) {
    if (const auto silent = silent_one(pair)) {
      return {.pair = pair,
              .error = fmt::format("not tested, as rank {} had not answered before", *silent)};
    }
    const auto lower = half_of(pair, pair.from, until);
    const auto upper = half_of(pair, pair.to, until);
    Tested tested{.pair = pair};
    if (!lower || !upper) {
      std::vector<std::uint32_t> silent;
      if (!lower) {
        silent.push_back(pair.from);
      }
      if (!upper) {
        silent.push_back(pair.to);
      }
      silent_.insert(silent_.end(), silent.begin(), silent.end());
      tested.error = fmt::format("no answer from rank{} {}", silent.size() == 1 ? "" : "s",
                                 fmt::join(silent, " and "));
    } else if (!lower->error.empty()) {
      tested.error = lower->error;
    } else if (!upper->error.empty()) {
      tested.error = upper->error;
    } else {
      tested.transports = lower->transports;
      tested.latency = lower->latency;
      tested.forth = lower->bandwidth;
      tested.back = upper->bandwidth;
      tested.from_end = lower->end;
      tested.to_end = upper->end;
    }
    return tested;
  }

  nanoseconds timeout_;
  LaunchEnvironment environment_;
  std::shared_ptr<KeyValueStore> store_;
  Examined job_;
  std::vector<std::uint32_t> silent_;  ///< silent ranks, as announced by rank 0
};

}  // namespace

int doctor(const JobOptions& options, bool as_json) {
  Doctor doctor(options);
  const Examined job = doctor.examine();
  if (doctor.rank() != 0) {
    return kFine;
  }
  const int code = failures(job).empty() ? kFine : kFailed;
  if (as_json) {
    static_cast<void>(print_line(json_of(job).dump(2)));
    return code;
  }
  std::vector<std::string> lines = {
      fmt::format("# gtopk {}, gtopk-info --doctor: {} ranks, {} host{}", kVersion,
                  job.members.size(), job.hosts.size(), job.hosts.size() == 1 ? "" : "s"),
      fmt::format("# latency: {} bytes one way, p50 of {}; bw: {} messages of {} KiB, from the "
                  "row's host to the column's; GB = 1e9 bytes",
                  kShort, kLatency.rounds, kBandwidth.window, kLong >> 10U),
      "# two hosts by the lowest rank of each, one host by its two lowest; no host is in two tests "
      "at once"};
  for (const std::string& line : text_of(job)) {
    lines.push_back(line);
  }
  for (const std::string& line : lines) {
    if (!print_line(line)) {
      break;
    }
  }
  return code;
}

}  // namespace gtopk::programs::info
