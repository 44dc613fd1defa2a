// Communicator: the flight recorder of a process, as configured by its environment.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "src/communicator/flight_files.hpp"
#include "src/engine/engine_thread.hpp"
#include "src/engine/flight_recorder.hpp"

namespace gtopk {

struct FlightSettings {
  std::size_t capacity = 2000;           ///< number of operations; 0 means that nothing is recorded
  std::optional<FlightFilesSpec> files;  ///< if empty, nothing is written
};

/// Reads GTOPK_FLIGHT_RECORDER, _DIR and _SIGNAL from the environment. Throws
/// Error{kInvalidArgument}.
[[nodiscard]] FlightSettings flight_settings();

class FlightRecording {
 public:
  /// Starts recording the operations of the thread's engine. Must outlive the thread.
  FlightRecording(const FlightSettings& settings, engine::EngineThread& thread);

  [[nodiscard]] std::string record() const;

 private:
  /// The offset from the engine's time points to the time since 1970.
  transport::Duration wall_;
  std::optional<engine::FlightRecorder> recorder_;
  std::optional<FlightFiles> files_;  // its thread ends first
};

}  // namespace gtopk
