// Public surface: a process, and the groups of ranks in which it runs collectives. Every call is
// asynchronous: it checks its arguments, queues the operation and returns; `done` is called once,
// on the engine's thread. It knows no torch; src/torch_backend is one caller, the tools are others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtopk/collective.hpp"
#include "gtopk/collectives.hpp"
#include "gtopk/directory.hpp"
#include "gtopk/error.hpp"
#include "gtopk/gate.hpp"
#include "gtopk/metrics.hpp"
#include "gtopk/plan.hpp"
#include "gtopk/types.hpp"

namespace gtopk {

namespace engine {
class Group;
class EngineThread;
}  // namespace engine
class FlightRecording;

/// This process as a member of jobs: one engine thread, one UCX worker, shared by all its groups.
/// The last owner's release ends operations under way (for at most 2 s), says goodbye to the peers,
/// and leaves no thread, file descriptor or shared-memory segment behind.
class Process {
 public:
  /// Throws Error{kTransport, kInvalidArgument}, the latter for an environment variable of ours
  /// that makes no sense.
  [[nodiscard]] static std::shared_ptr<Process> start();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process(Process&&) = delete;
  Process& operator=(Process&&) = delete;
  ~Process();

  /// "UCX 1.22.0, transports ..., devices ...", as loaded and configured.
  [[nodiscard]] const std::string& transport() const;

  /// Where its engine's thread runs, and why: "cores 0-15, node 0: eth0 is near cores 0-15",
  /// "not bound: ...". docs/environment.md has GTOPK_BIND.
  [[nodiscard]] const std::string& placement() const;

  /// The last operations of all its groups (GTOPK_FLIGHT_RECORDER of them), as JSON: what was
  /// called, has started and ended, and how. Any thread. docs/flight_recorder.md has the fields.
  [[nodiscard]] std::string flight_record() const;

 private:
  friend class Communicator;
  Process();
  void check_not_forked() const;

  std::int64_t started_by_;  // pid
  std::string placement_;
  std::unique_ptr<FlightRecording> flight_;
  std::unique_ptr<engine::EngineThread> thread_;
};

/// Where and as whom a group meets.
struct Meeting {
  /// The job's, which any number of groups may share: directory_over() of a store, or one of your
  /// own. The group keeps it to look up the addresses of ranks that this one has not talked to
  /// before. A group of one needs none.
  std::shared_ptr<Directory> directory{};
  std::string name = "default";
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::chrono::nanoseconds timeout =
      std::chrono::minutes(30);  ///< of the meeting, and default of every operation
  /// Names this rank's host: ranks that give equal names share one, whatever machine they run on.
  /// Empty: ranks share a host that have the kernel's boot id and IPC namespace in common.
  /// GTOPK_HOST in the environment goes before both. At most 255 bytes.
  std::string host{};
};

/// Per call.
struct Call {
  /// Engine thread; null: success. It must not block.
  std::function<void(std::exception_ptr)> done{};
  /// Owner of the memory, released when the network has let go of it.
  std::shared_ptr<void> keepalive{};
  /// Of this operation; the group's where absent.
  std::optional<std::chrono::nanoseconds> timeout{};
  /// Decided when the memory holds what is to be sent (a copy from a device has ended); where it
  /// decides that nothing happened, the operation fails with Error{kAborted}. Later collectives of
  /// the group start behind this one all the same, in the order of the calls; messages from rank to
  /// rank do not wait. Null: it is there now.
  std::shared_ptr<Gate> input{};
};

/// A group of ranks. Collectives are numbered in the order of their calls, which must be the same
/// on every rank; several may be in flight at once. Any thread may call; memory must stay valid
/// until `done`. Calls throw Error{kInvalidArgument} before anything is sent; `done` gets
/// Error{kMismatch, kPeerFailed, kTimeout, kAborted, ...}.
class Communicator {
 public:
  /// Meets the other ranks; blocks until all are there. Throws Error{kBootstrap, kInvalidArgument};
  /// over a store, with the same text on every rank that is there.
  Communicator(std::shared_ptr<Process> process, const Meeting& meeting);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  Communicator(Communicator&&) = delete;
  Communicator& operator=(Communicator&&) = delete;
  /// Lets what is under way end, for at most 2 s, and fails the rest with Error{kAborted}. Groups
  /// that are destroyed one right after the other share the 2 s.
  ~Communicator();

  [[nodiscard]] std::uint32_t rank() const;
  [[nodiscard]] std::uint32_t size() const;
  [[nodiscard]] const std::string& name() const;
  /// By rank, the number of its host; hosts are numbered in the order of their lowest ranks.
  [[nodiscard]] std::vector<std::uint32_t> hosts() const;
  void set_timeout(std::chrono::nanoseconds timeout);

  /// Queues the collective and returns its number among the group's, 0 for a point-to-point
  /// message.
  std::uint64_t run(Collective collective, Call call);

  /// Fails everything under way on this rank with Error{kAborted} and ends the group; the other
  /// ranks are told.
  void abort(const std::string& reason);

  /// Why the group is over, where it is. Asks the engine's thread.
  [[nodiscard]] std::optional<ErrorKind> failure() const;

  [[nodiscard]] Statistics statistics() const;
  /// Of the `auto` that ended last, where one has. Asks the engine's thread.
  [[nodiscard]] std::optional<PlanReport> last_plan() const;

 private:
  std::shared_ptr<Process> process_;
  std::shared_ptr<Directory> directory_;  // let go of here, not by the engine
  std::shared_ptr<engine::Group> group_;
  std::atomic<std::int64_t> timeout_nanoseconds_;
};

}  // namespace gtopk
