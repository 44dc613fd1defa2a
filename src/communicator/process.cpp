#include <unistd.h>

#include <functional>
#include <utility>

#include <fmt/format.h>

#include "gtopk/communicator.hpp"
#include "gtopk/launch.hpp"
#include "src/communicator/flight_recording.hpp"
#include "src/engine/engine_thread.hpp"
#include "src/transport/base/job_key.hpp"
#include "src/transport/base/log.hpp"
#include "src/transport/base/shortage.hpp"
#include "src/transport/topology/placement.hpp"
#include "src/transport/ucx/ucx_transport.hpp"

namespace gtopk {

std::shared_ptr<Process> Process::start() { return std::shared_ptr<Process>(new Process()); }

Process::Process() : started_by_(getpid()) {
  transport::raise_open_file_limit();
  const topology::Placement placement = topology::placement_here();
  placement_ = placement.text;
  thread_ = std::make_unique<engine::EngineThread>(
      [&placement] {
        topology::bind_this_thread(placement);
        transport::UcxOptions options;
        if (!placement.devices.empty()) {
          transport::log().info("UCX_NET_DEVICES={}: {}", placement.devices, placement.why_devices);
          options.settings.emplace_back("NET_DEVICES", placement.devices);
        }
        return transport::make_ucx_transport(options);
      },
      transport::JobKey::of(job_secret()));
  flight_ = std::make_unique<FlightRecording>(flight_settings(), *thread_);
}

Process::~Process() {
  // In a forked child the thread does not exist and the network belongs to the parent, so touch
  // neither.
  if (started_by_ == getpid()) {
    return;
  }
  static_cast<void>(thread_.release());
  static_cast<void>(flight_.release());
}

std::string Process::flight_record() const {
  check_not_forked();
  return flight_->record();
}

void Process::use(std::function<void(Memory)> make_current) {
  check_not_forked();
  thread_->call([&] { thread_->engine().use(std::move(make_current)); });
}

void Process::set_last_words(std::string text) {
  check_not_forked();
  thread_->call([&] { thread_->engine().set_last_words(std::move(text)); });
}

const std::string& Process::transport() const { return thread_->description(); }

bool Process::spent() const {
  check_not_forked();
  bool spent = false;
  thread_->call([&] { spent = thread_->engine().transport().spent(); });
  return spent;
}

const std::string& Process::placement() const { return placement_; }

void Process::check_not_forked() const {
  if (started_by_ == getpid()) {
    return;
  }
  throw Error(
      ErrorKind::kInvalidArgument,
      fmt::format("process {} was forked from process {}, which had started gtopk: a forked "
                  "child cannot use its parent's groups; start it with spawn instead",
                  getpid(), started_by_));
}

}  // namespace gtopk
