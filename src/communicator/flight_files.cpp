#include "src/communicator/flight_files.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <system_error>
#include <utility>

#include "gtopk/error.hpp"
#include "src/transport/base/log.hpp"
#include "src/transport/base/shortage.hpp"

namespace gtopk {
namespace {

/// A number greater than any count of requests. Adding it to the count ends the thread.
constexpr eventfd_t kEnd = eventfd_t{1} << 62U;

// This is all that the signal handler can access. A forked child inherits the handler but not the
// thread, and must not wake its parent's thread.
std::atomic<int> signalled{-1};
std::atomic<pid_t> owner{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int /*number*/) {
  const int before = errno;
  if (owner == getpid()) {
    eventfd_write(signalled, 1);
  }
  errno = before;
}

}  // namespace

FlightFiles::FlightFiles(const FlightFilesSpec& spec, const std::string& file,
                         std::function<std::string()> record)
    : spec_(spec),
      file_(std::filesystem::path(spec.directory) / file),
      record_(std::move(record)),
      wake_(eventfd(0, EFD_CLOEXEC)) {
  if (!wake_) {
    throw Error(ErrorKind::kTransport, "the flight recorder could not create an eventfd: " +
                                           std::generic_category().message(errno));
  }
  thread_ = transport::start_thread("gtopk-flight", [this] { loop(); });
  if (spec_.signal != 0) {
    take_signal();
  }
}

FlightFiles::~FlightFiles() {
  if (spec_.signal != 0) {
    give_signal_back();
  }
  eventfd_write(wake_.get(), kEnd);
  thread_.join();
}

void FlightFiles::take_signal() {
  struct sigaction taken {};
  taken.sa_handler = on_signal;
  taken.sa_flags = SA_RESTART;
  signalled = wake_.get();
  owner = getpid();
  sigaction(spec_.signal, &taken, &before_);  // cannot fail for a signal that can be handled
}

void FlightFiles::give_signal_back() const {
  sigaction(spec_.signal, &before_, nullptr);
  owner = 0;
}

void FlightFiles::write_soon() const { eventfd_write(wake_.get(), 1); }

void FlightFiles::loop() {
  for (eventfd_t asked = 0; asked < kEnd;) {
    if (eventfd_read(wake_.get(), &asked) != 0) {
      continue;  // interrupted by a signal
    }
    if (asked % kEnd != 0) {
      write();
    }
  }
}

/// Replaces the file atomically, so readers never see half a file.
void FlightFiles::write() const {
  try {
    std::filesystem::create_directories(file_.parent_path());
    std::filesystem::path unfinished = file_;
    unfinished += ".part";
    std::ofstream stream;
    stream.exceptions(std::ofstream::badbit | std::ofstream::failbit);
    stream.open(unfinished);
    stream << record_();
    stream.close();
    std::filesystem::rename(unfinished, file_);
    transport::log().warn("the flight record of this process is in {}", file_.string());
  } catch (const std::exception& error) {
    transport::log().error("the flight record of this process cannot be written to {}: {}",
                           file_.string(), error.what());
  }
}

}  // namespace gtopk
