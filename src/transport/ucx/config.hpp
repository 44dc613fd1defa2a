// Transport over UCX: the settings, and the source of each. This module starts nothing.
#pragma once

#include <ucp/api/ucp.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/transport/base/keepalive.hpp"

namespace gtopk::transport {

/// One setting's value and where it comes from.
struct Setting {
  std::string key;  ///< without the UCX_ prefix
  std::string value;
  std::string source;  ///< "default", "program", or the environment variable
};

/// The value for GTOPK_CONNECTIONS=auto, with which connections_for() decides.
inline constexpr std::uint32_t kAutoConnections = 0;

/// The value of GTOPK_CONNECTIONS; kAutoConnections if it is not set. Throws
/// Error{kInvalidArgument} unless it is "auto" or a number from 1 to kMostConnections.
[[nodiscard]] std::uint32_t connections_of_environment();

/// The value of GTOPK_PORTS in UCX's notation ("40000-40015"); empty if it is not set. Throws
/// Error{kInvalidArgument} unless it is a range of ports or a single port.
[[nodiscard]] std::string ports_of_environment();

/// Whether device memory is passed to UCX (GTOPK_DEVICE_POINTERS).
enum class DevicePointers : std::uint8_t {
  kAuto,    ///< if UCX knows such memory and reaches the peer over more than TCP
  kNever,   ///< "0"
  kAlways,  ///< "1"
  kAsHost   ///< "host": always, as host memory
};
/// The variable's value; kAuto if it is not set. Throws Error{kInvalidArgument}.
[[nodiscard]] DevicePointers device_pointers_of_environment();

/// Applies the rule. `known`: UCX knows such memory; `tls`: UCX's UCX_TLS; `same_host`: the peer is
/// on this host.
[[nodiscard]] bool takes_devices(DevicePointers said, bool known, std::string_view tls,
                                 bool same_host);

/// Parses a duration as UCX reads it ("10s", "1.5m", "500ms", "3"), rounded down to whole seconds,
/// but at least one. Returns nullopt for anything else, such as "auto".
[[nodiscard]] std::optional<std::chrono::seconds> seconds_of(std::string_view text);

class UcxConfig {
 public:
  /// Reads the environment, then the program's settings and the defaults for what the environment
  /// leaves unset. Throws Error{kTransport} for a setting that UCX rejects.
  explicit UcxConfig(const std::vector<std::pair<std::string, std::string>>& program);

  [[nodiscard]] const ucp_config_t* get() const { return config_.get(); }
  [[nodiscard]] const std::vector<Setting>& settings() const { return settings_; }
  /// The effective value of one of the settings above; empty if not set.
  [[nodiscard]] std::string value(const std::string& key) const;
  /// UCX_NET_DEVICES, from any source; empty if it is not set.
  [[nodiscard]] std::string network_devices() const;
  /// The ports at which UCX may accept connections, and their source: "GTOPK_PORTS=40000-40015";
  /// empty if they are not set.
  [[nodiscard]] std::string said_of_ports() const;
  /// UCX's TCP_KEEPIDLE, TCP_KEEPINTVL and TCP_KEEPCNT; nullopt if one of them is "inf".
  [[nodiscard]] std::optional<Keepalive> keepalive() const;
  /// The setting that decides which transports and devices there are: "UCX_TLS=tcp,self
  /// (GTOPK_UCX_TLS)".
  [[nodiscard]] std::string said_of_transports() const;

 private:
  struct Release {
    void operator()(ucp_config_t* config) const { ucp_config_release(config); }
  };
  void read_environment();
  /// A setting from any source; empty if it is not set.
  [[nodiscard]] std::string chosen(const std::string& key) const;
  void choose(const std::string& key, const std::string& value, const char* source);
  void apply(const std::string& key, const std::string& value, const std::string& source);

  std::unique_ptr<ucp_config_t, Release> config_;
  std::vector<Setting> settings_;
};

}  // namespace gtopk::transport
