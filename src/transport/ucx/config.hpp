// Transport over UCX: the settings, and who chose each. It starts nothing.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gtopk::transport {

/// Who chose the value of one setting.
struct Setting {
  std::string key;  ///< without UCX_ in front
  std::string value;
  std::string source;  ///< "default", "program", or the environment variable
};

class UcxConfig {
 public:
  /// Reads the environment, then fills in the program's settings and the defaults where it says
  /// nothing. Throws Error{kTransport} for a setting that UCX does not take.
  explicit UcxConfig(const std::vector<std::pair<std::string, std::string>>& program);

  [[nodiscard]] const ucp_config_t* get() const { return config_.get(); }
  [[nodiscard]] const std::vector<Setting>& settings() const { return settings_; }
  /// The value in effect of one of the settings above; empty when nobody chose any.
  [[nodiscard]] std::string value(const std::string& key) const;

 private:
  struct Release {
    void operator()(ucp_config_t* config) const { ucp_config_release(config); }
  };
  void read_environment();
  void choose(const std::string& key, const std::string& value, const char* source);
  void apply(const std::string& key, const std::string& value, const std::string& source);

  std::unique_ptr<ucp_config_t, Release> config_;
  std::vector<Setting> settings_;
};

}  // namespace gtopk::transport
