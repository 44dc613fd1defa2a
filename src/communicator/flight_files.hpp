// Communicator: writes the flight record of this process to a file when an operation fails or a
// signal arrives, on its own thread. It does not know the engine.
#pragma once

#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "src/transport/bootstrap/socket.hpp"

namespace gtopk {

struct FlightFilesSpec {
  std::string directory;  ///< created if missing
  int signal = 0;         ///< 0 means no signal
};

class FlightFiles {
 public:
  /// Calls `record` on the writing thread; it returns the file's contents. Installs the signal
  /// handler; no other FlightFiles of the process may use that signal. Throws Error{kTransport}.
  FlightFiles(const FlightFilesSpec& spec, const std::string& file,
              std::function<std::string()> record);
  FlightFiles(const FlightFiles&) = delete;
  FlightFiles& operator=(const FlightFiles&) = delete;
  FlightFiles(FlightFiles&&) = delete;
  FlightFiles& operator=(FlightFiles&&) = delete;
  /// Finishes requested writes, and restores the previous signal handler.
  ~FlightFiles();

  /// Requests a file. Thread-safe; does not block.
  void write_soon() const;

 private:
  void loop();
  void write() const;
  void take_signal();
  void give_signal_back() const;

  const FlightFilesSpec spec_;
  const std::filesystem::path file_;
  const std::function<std::string()> record_;
  struct sigaction before_ {};  ///< the former handler of the signal
  bootstrap::Descriptor wake_;  ///< eventfd: 1 for each requested file, kEnd to end
  std::thread thread_;
};

}  // namespace gtopk
