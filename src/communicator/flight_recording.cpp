#include "src/communicator/flight_recording.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "gtopk/error.hpp"

namespace gtopk {
namespace {

constexpr const char* kCapacity = "GTOPK_FLIGHT_RECORDER";
constexpr const char* kDirectory = "GTOPK_FLIGHT_RECORDER_DIR";
constexpr const char* kSignal = "GTOPK_FLIGHT_RECORDER_SIGNAL";
/// Each entry takes about 1.2 kB.
constexpr std::size_t kMostEntries = 1'000'000;

constexpr std::array<std::pair<std::string_view, int>, 4> kSignals{
    {{"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2}, {"SIGHUP", SIGHUP}, {"SIGQUIT", SIGQUIT}}};

std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

std::optional<std::size_t> number_in(std::string_view text, std::size_t most) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && number <= most ? std::optional(number) : std::nullopt;
}

[[noreturn]] void refuse(const char* name, std::string_view value, const std::string& expected) {
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("{}={}: expected {}", name, value, expected));
}

int signal_in(std::string_view text) {
  for (const auto& [name, number] : kSignals) {
    if (name == text) {
      return number;
    }
  }
  refuse(kSignal, text, "SIGUSR1, SIGUSR2, SIGHUP or SIGQUIT");
}

}  // namespace

FlightSettings flight_settings() {
  FlightSettings settings;
  if (const std::string_view text = variable(kCapacity); !text.empty()) {
    const std::optional<std::size_t> capacity = number_in(text, kMostEntries);
    if (!capacity) {
      refuse(kCapacity, text, fmt::format("a number of operations, 0 to {}", kMostEntries));
    }
    settings.capacity = *capacity;
  }
  const std::string_view directory = variable(kDirectory);
  const std::string_view signal = variable(kSignal);
  if (!directory.empty()) {
    settings.files.emplace(
        FlightFilesSpec{std::string(directory), signal.empty() ? 0 : signal_in(signal)});
  } else if (!signal.empty()) {
    refuse(kSignal, signal, fmt::format("{} to be set as well", kDirectory));
  }
  return settings;
}

FlightRecording::FlightRecording(const FlightSettings& settings, engine::EngineThread& thread)
    : wall_(std::chrono::duration_cast<transport::Duration>(
                std::chrono::system_clock::now().time_since_epoch()) -
            transport::SteadyClock().now().time_since_epoch()) {
  if (settings.capacity == 0) {
    return;
  }
  recorder_.emplace(settings.capacity, [this] {
    if (files_) {
      files_->write_soon();
    }
  });
  if (settings.files) {
    const transport::PeerInfo& self = thread.self();
    files_.emplace(*settings.files, fmt::format("gtopk_{}_{}.json", self.host, self.process),
                   [this] { return record(); });
  }
  thread.call([&] { thread.engine().observers().add(*recorder_); });
}

std::string FlightRecording::record() const {
  return json_of(recorder_ ? recorder_->entries() : std::vector<engine::FlightEntry>(), wall_);
}

}  // namespace gtopk
