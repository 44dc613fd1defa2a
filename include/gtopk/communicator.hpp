/// @file
/// A process, and the groups of ranks in which it runs collectives. Every call is asynchronous: it
/// checks its arguments, queues the operation and returns; `done` is called once, on the engine
/// thread. This header does not depend on torch: src/torch_backend is one caller, the tools are
/// others.
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
#include "gtopk/memory.hpp"
#include "gtopk/metrics.hpp"
#include "gtopk/plan.hpp"
#include "gtopk/types.hpp"

namespace gtopk {

namespace engine {
class Group;
class EngineThread;
}  // namespace engine
class FlightRecording;

/// This process as a member of jobs: one engine thread and one UCX worker, shared by all its
/// groups. Releasing the last owner waits at most 2 s for operations in flight, says goodbye to the
/// peers, and leaves no thread, file descriptor or shared-memory segment behind.
class Process {
 public:
  /// Starts the engine. Throws Error{kTransport}; Error{kInvalidArgument} if a GTOPK_ environment
  /// variable is invalid; Error{kBootstrap} if the job's secret (job_secret()) is invalid.
  [[nodiscard]] static std::shared_ptr<Process> start();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process(Process&&) = delete;
  Process& operator=(Process&&) = delete;
  ~Process();

  /// The transport as loaded and configured: "UCX 1.22.0, transports ..., devices ...".
  [[nodiscard]] const std::string& transport() const;

  /// Whether this process has lost a peer that did not leave: the peer timed out, or the connection
  /// broke. If that peer is still alive, the two cannot communicate through this Process again;
  /// start another one for groups that may have the peer as a member. Asks the engine thread.
  [[nodiscard]] bool spent() const;

  /// The cores to which the engine's thread is bound, and the reason: "cores 0-15, node 0: eth0 is
  /// near cores 0-15", "not bound: ...". docs/environment.md explains GTOPK_BIND.
  [[nodiscard]] const std::string& placement() const;

  /// The last operations of all groups as JSON: which were called, started and ended, and how.
  /// GTOPK_FLIGHT_RECORDER sets how many are kept. May be called on any thread.
  /// docs/flight_recorder.md describes the fields.
  [[nodiscard]] std::string flight_record() const;

  /// Sets the function that makes a device current on the engine's thread. The engine calls it
  /// there before it hands device memory to the transport, and again when the device changes. If it
  /// throws Error, the operation fails with that. Not needed if the transport finds devices itself.
  void use(std::function<void(Memory)> make_current);

  /// Sets the reason why this process is about to leave its groups, such as an uncaught exception.
  /// Errors of other ranks that wait for it quote the text. Otherwise they quote the error of this
  /// process's last operation, if it failed.
  void set_last_words(std::string text);

 private:
  friend class Communicator;
  Process();
  void check_not_forked() const;

  std::int64_t started_by_;  // pid
  std::string placement_;
  std::unique_ptr<FlightRecording> flight_;
  std::unique_ptr<engine::EngineThread> thread_;
};

/// Where a group meets, and which of its ranks this process has.
struct Meeting {
  /// The job's directory, which any number of groups may share: made by directory_over() from a
  /// store, or your own implementation. The group keeps it to look up the addresses of ranks that
  /// this process has not communicated with yet. A group of one needs none.
  std::shared_ptr<Directory> directory{};
  std::string name = "default";  ///< the group's name; distinguishes groups of a directory
  std::uint32_t rank = 0;        ///< this process's rank
  std::uint32_t size = 1;        ///< number of ranks
  std::chrono::nanoseconds timeout =
      std::chrono::minutes(30);  ///< limits the meeting; default for operations
  /// The name of this rank's host. Ranks that give the same name share a host, whatever machine
  /// they run on. If empty, ranks with the same kernel boot id and IPC namespace share one. The
  /// environment variable GTOPK_HOST overrides both. At most 255 bytes.
  std::string host{};
};

/// Per-call settings.
struct Call {
  /// Called once, on the engine thread; null means success. Must not block. Exceptions that it
  /// throws are logged.
  std::function<void(std::exception_ptr)> done{};
  /// Owner of the memory. It is released once the network no longer uses the memory, if possible
  /// before `done`; `done` must itself keep alive what it reads.
  std::shared_ptr<void> keepalive{};
  /// This operation's timeout; if absent, the group's timeout applies.
  std::optional<std::chrono::nanoseconds> timeout{};
  /// A gate that is decided once the memory holds what is to be sent, for example after a copy from
  /// a device. If the gate decides that this did not happen, the operation fails with
  /// Error{kAborted}. Later collectives of the group still start after this one, in call order;
  /// point-to-point messages do not wait. Null: the input is ready.
  std::shared_ptr<Gate> input{};
};

/// A group of ranks. Collectives are numbered in call order, which must be the same on every rank;
/// several may be in flight at once. Thread-safe; memory must stay valid until `done`. Timeouts are
/// capped at a hundred years. Calls throw Error{kInvalidArgument} before anything is sent; `done`
/// gets Error{kMismatch, kPeerFailed, kTimeout, kAborted, ...}.
class Communicator {
 public:
  /// Meets the other ranks; blocks until all are present. Throws Error{kBootstrap,
  /// kInvalidArgument}; with a store, the text is the same on every rank present.
  Communicator(std::shared_ptr<Process> process, const Meeting& meeting);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  Communicator(Communicator&&) = delete;
  Communicator& operator=(Communicator&&) = delete;
  /// Waits at most 2 s for operations in flight and fails the rest with Error{kAborted}. Groups
  /// destroyed in quick succession share the 2 s.
  ~Communicator();

  /// This process's rank.
  [[nodiscard]] std::uint32_t rank() const;
  /// The number of ranks.
  [[nodiscard]] std::uint32_t size() const;
  /// The group's name.
  [[nodiscard]] const std::string& name() const;
  /// The host number of each rank; hosts are numbered in the order of their lowest ranks.
  [[nodiscard]] std::vector<std::uint32_t> hosts() const;
  /// Sets the timeout of later operations whose Call has none.
  void set_timeout(std::chrono::nanoseconds timeout);

  /// Whether messages to and from that rank may lie in this process's memory of this kind. The
  /// answer never changes. A caller that passes device memory must make sure that it is ready
  /// (Call::input).
  [[nodiscard]] bool takes(Memory::Kind kind, std::uint32_t rank) const;

  /// Whether a caller that waits for an operation should poll for its end for some 50 us before it
  /// sleeps, judging by the engine's own recent waits. False where ranks share cores.
  [[nodiscard]] bool polling_pays() const;

  /// Queues the collective and returns its number in the group, counted from 1; 0 for a
  /// point-to-point message.
  std::uint64_t run(Collective collective, Call call);

  /// Fails everything in flight on this rank with Error{kAborted}, ends the group, and notifies the
  /// other ranks.
  void abort(const std::string& reason);

  /// Why the group has failed; empty if it has not. Asks the engine thread.
  [[nodiscard]] std::optional<ErrorKind> failure() const;

  /// What the group has done so far on this rank. May be called on any thread.
  [[nodiscard]] Statistics statistics() const;
  /// The report of the last `auto` operation to end; empty if there was none. Asks the engine
  /// thread.
  [[nodiscard]] std::optional<PlanReport> last_plan() const;

 private:
  std::shared_ptr<Process> process_;
  std::shared_ptr<Directory> directory_;  // released here, not by the engine
  std::shared_ptr<engine::Group> group_;
  std::vector<std::uint8_t> reached_from_devices_;  // indexed by rank
  std::atomic<std::int64_t> timeout_nanoseconds_;
};

}  // namespace gtopk
