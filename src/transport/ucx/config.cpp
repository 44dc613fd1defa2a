#include "src/transport/ucx/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

#include "gtopk/error.hpp"
#include "src/transport/base/log.hpp"
#include "src/transport/base/transport.hpp"
#include "src/transport/ucx/port_range.hpp"
#include "src/transport/ucx/posix_space.hpp"
#include "src/transport/ucx/status.hpp"

namespace gtopk::transport {
namespace {

/// Below this, /dev/shm may be too small for a host's ranks.
constexpr std::uint64_t kSpaceForPosix = std::uint64_t{1} << 30U;

/// Includes shared memory, but not its third transport, cma, which has no error handling, so UCX
/// would only probe it. POSIX is included only if /dev/shm has space: each rank takes 4.2 MiB of
/// it, and a container's usual 64 MiB suffice for fifteen ranks. System V has no such limit.
const char* default_transports() {
  return posix_space() < kSpaceForPosix ? "tcp,sysv,self" : "tcp,posix,sysv,self";
}

// docs/ucx.md has the measurements.
constexpr std::array<std::pair<const char*, const char*>, 7> kDefaults = {{
    // Without this setting, error mode PEER silently moves shared-memory traffic to TCP on
    // loopback.
    {"MM_ERROR_HANDLING", "y"},
    // Otherwise UCX takes buffers from the heap when there is no space for shared memory, and a
    // signal ends the peer that writes to them.
    {"POSIX_ALLOC", "md"},
    {"SYSV_ALLOC", "md"},
    // One segment of this size holds 256 KiB and a header. A message that fits is sent in one
    // piece, four times as fast as with 64K.
    {"TCP_TX_SEG_SIZE", "272K"},
    {"TCP_RX_SEG_SIZE", "272K"},  // never below the sender's
    // A blocking connect stops progress for every other peer. Also, if the connection is reset
    // before its first message, UCX 1.22 destroys an endpoint that it continues to use.
    {"TCP_CONN_NB", "y"},
    // With this, a host that drops packets is reported after half a minute instead of two minutes.
    {"TCP_SYN_CNT", "4"},
}};

}  // namespace

std::uint32_t connections_of_environment() {
  const char* const variable = std::getenv("GTOPK_CONNECTIONS");
  const std::string_view text = variable == nullptr ? "auto" : variable;
  if (text == "auto") {
    return kAutoConnections;
  }
  std::uint32_t connections = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), connections);
  if (error != std::errc{} || end != text.data() + text.size() || connections == 0 ||
      connections > kMostConnections) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("GTOPK_CONNECTIONS is '{}': expected auto, or a number of connections "
                            "to each rank, 1 to {}",
                            text, kMostConnections));
  }
  return connections;
}

std::string ports_of_environment() {
  const char* const variable = std::getenv("GTOPK_PORTS");
  if (variable == nullptr) {
    return {};
  }
  const std::string_view text = variable;
  const std::optional<PortRange> ports = port_range(text);
  if (!ports) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("GTOPK_PORTS is '{}': expected a range of TCP ports of 1 to 65535, like "
                    "40000-40015",
                    text));
  }
  return fmt::format("{}-{}", ports->first, ports->last);
}

DevicePointers device_pointers_of_environment() {
  const char* const variable = std::getenv("GTOPK_DEVICE_POINTERS");
  const std::string_view text = variable == nullptr ? "auto" : variable;
  if (text == "auto") {
    return DevicePointers::kAuto;
  }
  if (text == "0" || text == "1") {
    return text == "1" ? DevicePointers::kAlways : DevicePointers::kNever;
  }
  if (text == "host") {
    return DevicePointers::kAsHost;
  }
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("GTOPK_DEVICE_POINTERS is '{}': expected auto, 0, 1 or host", text));
}

bool takes_devices(DevicePointers said, bool known, std::string_view tls, bool same_host) {
  if (said != DevicePointers::kAuto) {
    return said != DevicePointers::kNever;
  }
  // Between processes of one host UCX maps device memory (cuda_ipc); between hosts an RDMA card can
  // read it. Over TCP UCX would copy it piece by piece.
  static constexpr std::array<std::string_view, 3> kOnHost = {"all", "cuda", "cuda_ipc"};
  static constexpr std::array<std::string_view, 10> kBetweenHosts = {
      "all", "ib", "rc", "rc_v", "rc_x", "rc_verbs", "rc_mlx5", "dc", "dc_x", "dc_mlx5"};
  const auto names_one = [tls](std::span<const std::string_view> wanted) {
    bool found = tls.empty() || tls.starts_with('^');  // all transports, or all but some
    for (std::size_t begin = 0; begin < tls.size() && !found;) {
      const std::size_t end = std::min(tls.find(',', begin), tls.size());
      found = std::ranges::count(wanted, tls.substr(begin, end - begin)) != 0;
      begin = end + 1;
    }
    return found;
  };
  return known && (same_host ? names_one(kOnHost) : names_one(kBetweenHosts));
}

std::optional<std::chrono::seconds> seconds_of(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 6> kUnits = {
      {{"", 1}, {"s", 1}, {"m", 60}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, text.data() + text.size());
  const auto* const known =
      std::ranges::find(kUnits, unit, &std::pair<std::string_view, double>::first);
  // The kernel accepts at most 32,767 s.
  const double seconds = known == kUnits.end() ? 0 : number * known->second;
  if (error != std::errc{} || !std::isfinite(number) || !(seconds > 0)) {
    return std::nullopt;
  }
  return std::chrono::seconds(static_cast<int>(std::clamp(seconds, 1.0, 32767.0)));
}

UcxConfig::UcxConfig(const std::vector<std::pair<std::string, std::string>>& program) {
  ucp_config_t* config = nullptr;
  throw_unless_ok(ucp_config_read("GTOPK", nullptr, &config), "reading UCX's configuration");
  config_.reset(config);
  read_environment();
  // GTOPK_PORTS applies only to gtopk, so it overrides UCX_TCP_PORT_RANGE.
  if (const std::string ports = ports_of_environment();
      !ports.empty() && value("TCP_PORT_RANGE").empty()) {
    apply("TCP_PORT_RANGE", ports, "GTOPK_PORTS");
  }
  for (const auto& [key, value] : program) {
    choose(key, value, "program");
  }
  choose("TLS", default_transports(), "default");
  for (const auto& [key, value] : kDefaults) {
    choose(key, value, "default");
  }
  for (const Setting& setting : settings_) {
    log().debug("UCX_{}={} ({})", setting.key, setting.value, setting.source);
  }
}

/// UCX reads UCX_<KEY> itself, but GTOPK_UCX_<KEY> only in its upper layer, so it would miss TCP's
/// segment sizes, for example. This function passes them on.
void UcxConfig::read_environment() {
  constexpr std::string_view kPrefix = "GTOPK_UCX_";
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::size_t equals = text.find('=');
    if (text.starts_with(kPrefix) && equals != std::string_view::npos) {
      const std::string key(text.substr(kPrefix.size(), equals - kPrefix.size()));
      apply(key, std::string(text.substr(equals + 1)), std::string(kPrefix) + key);
    }
  }
}

void UcxConfig::choose(const std::string& key, const std::string& value, const char* source) {
  const auto same = [&key](const Setting& setting) { return setting.key == key; };
  if (std::any_of(settings_.begin(), settings_.end(), same)) {
    return;
  }
  const std::string name = "UCX_" + key;
  if (const char* const user = std::getenv(name.c_str())) {
    settings_.push_back({key, user, name});
  } else {
    apply(key, value, source);
  }
}

void UcxConfig::apply(const std::string& key, const std::string& value, const std::string& source) {
  const ucs_status_t status = ucp_config_modify(config_.get(), key.c_str(), value.c_str());
  if (status != UCS_OK) {
    throw Error(ErrorKind::kTransport, fmt::format("UCX does not accept UCX_{}={} ({}): {}", key,
                                                   value, source, ucs_status_string(status)));
  }
  settings_.push_back({key, value, source});
}

std::string UcxConfig::value(const std::string& key) const {
  const auto found = std::find_if(settings_.begin(), settings_.end(),
                                  [&key](const Setting& setting) { return setting.key == key; });
  return found == settings_.end() ? std::string() : found->value;
}

std::string UcxConfig::chosen(const std::string& key) const {
  const char* const user = std::getenv(("UCX_" + key).c_str());
  const std::string ours = value(key);
  return ours.empty() && user != nullptr ? std::string(user) : ours;
}

std::string UcxConfig::network_devices() const { return chosen("NET_DEVICES"); }

std::optional<Keepalive> UcxConfig::keepalive() const {
  const std::string idle = chosen("TCP_KEEPIDLE");
  const std::string interval = chosen("TCP_KEEPINTVL");
  const std::string probes = chosen("TCP_KEEPCNT");
  if (idle == "inf" || interval == "inf" || probes == "inf") {
    return std::nullopt;
  }
  Keepalive keepalive;
  keepalive.idle = seconds_of(idle).value_or(keepalive.idle);
  keepalive.interval = seconds_of(interval).value_or(keepalive.interval);
  int count = 0;
  if (const auto [end, error] =
          std::from_chars(probes.data(), probes.data() + probes.size(), count);
      error == std::errc{} && count > 0) {
    keepalive.probes = count;
  }
  return keepalive;
}

std::string UcxConfig::said_of_ports() const {
  for (const Setting& setting : settings_) {
    if (setting.key == "TCP_PORT_RANGE") {
      const bool programs = setting.source == "program";
      return fmt::format("{}={}", programs ? "UCX_TCP_PORT_RANGE" : setting.source, setting.value);
    }
  }
  const char* const user = std::getenv("UCX_TCP_PORT_RANGE");
  return user == nullptr ? std::string() : fmt::format("UCX_TCP_PORT_RANGE={}", user);
}

std::string UcxConfig::said_of_transports() const {
  std::vector<std::string> all;
  for (const Setting& setting : settings_) {
    if (setting.key == "TLS" || setting.key == "NET_DEVICES") {
      all.push_back(fmt::format("UCX_{}={} ({})", setting.key, setting.value, setting.source));
    }
  }
  if (!network_devices().empty() && value("NET_DEVICES").empty()) {
    all.push_back(fmt::format("UCX_NET_DEVICES={}", network_devices()));
  }
  return fmt::format("{}", fmt::join(all, ", "));
}

}  // namespace gtopk::transport
