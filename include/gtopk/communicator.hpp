// Public surface: a process, and the groups of ranks in which it runs collectives. Every call is
// asynchronous: it checks its arguments, queues the operation and returns; `done` is called once,
// on the engine's thread. It knows no torch; src/torch_backend is one caller, the tools are others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gtopk/error.hpp"
#include "gtopk/types.hpp"

namespace gtopk {

namespace bootstrap {
class KeyValueStore;
}
namespace engine {
class Group;
class EngineThread;
struct OperationSpec;
}  // namespace engine
namespace sparse {
struct Workspace;
}

/// This process as a member of jobs: one engine thread, one UCX worker, shared by all its groups.
/// The last owner's release ends operations under way (for at most 2 s), says goodbye to the peers,
/// and leaves no thread, file descriptor or shared-memory segment behind.
class Process {
 public:
  /// Throws Error{kTransport}.
  [[nodiscard]] static std::shared_ptr<Process> start();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  Process(Process&&) = delete;
  Process& operator=(Process&&) = delete;
  ~Process();

  /// "UCX 1.22.0, transports ..., devices ...", as loaded and configured.
  [[nodiscard]] const std::string& transport() const;

 private:
  friend class Communicator;
  Process();
  void check_not_forked() const;

  std::int64_t started_by_;  // pid
  std::unique_ptr<sparse::Workspace> workspace_;
  std::unique_ptr<engine::EngineThread> thread_;
};

/// What a group has done since it was made. Bytes and messages are this rank's, headers included.
struct Statistics {
  std::uint64_t operations = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t notices_sent = 0;
  std::uint64_t most_in_flight = 0;  ///< operations at once
  double compress_seconds = 0;       ///< selecting
  double exchange_seconds =
      0;                      ///< messages and merges; those of operations in flight at once add up
  double commit_seconds = 0;  ///< writing tensor and residual
};

/// Where and as whom a group meets.
struct Meeting {
  /// Keys of this group alone.
  std::shared_ptr<bootstrap::KeyValueStore> group;
  /// The same for every group of the job; may be `group` when there is only one. The group keeps it
  /// to look up the addresses of ranks that this one has not talked to before.
  std::shared_ptr<bootstrap::KeyValueStore> job;
  std::string name = "default";
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::chrono::nanoseconds timeout =
      std::chrono::minutes(30);  ///< of the meeting, and default of every operation
};

/// Per call.
struct Call {
  std::function<void(std::exception_ptr)>
      done;  ///< engine thread; null: success. It must not block
  std::shared_ptr<void>
      keepalive;  ///< owner of the memory, released when the network has let go of it
  std::optional<std::chrono::nanoseconds> timeout;  ///< of this operation; the group's where absent
};

/// A group of ranks. Collectives are numbered in the order of their calls, which must be the same
/// on every rank; several may be in flight at once. Any thread may call; memory must stay valid
/// until `done`. Calls throw Error{kInvalidArgument} before anything is sent; `done` gets
/// Error{kMismatch, kPeerFailed, kTimeout, kAborted, ...}.
class Communicator {
 public:
  /// Meets the other ranks; blocks until all are there. Throws Error{kBootstrap, kInvalidArgument},
  /// with the same text on every rank that is there.
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
  void set_timeout(std::chrono::nanoseconds timeout);

  /// tensor: d elements of dtype, the gradient in, the reduced gradient out (zeros off the result).
  /// residual: d elements of accumulation_type(dtype), in and out; null is a zero residual,
  /// discarded afterwards. options.k >= 1 (larger than d means d); meaning of the result:
  /// docs/algorithms.md.
  void sparse_all_reduce(void* tensor, void* residual, std::uint64_t d, DataType dtype,
                         const SparseOptions& options, Call call);

  /// data: d elements, in place.
  void all_reduce(void* data, std::uint64_t d, DataType dtype, ReduceOp op, Call call);

  /// The root's bytes to all, in place. dtype: what they are, compared between the ranks.
  void broadcast(std::span<std::byte> data, std::uint32_t root, Call call,
                 DataType dtype = DataType::kUint8);

  /// rooms: one per rank, all of one size; the own one holds this rank's bytes on entry. dtype as
  /// above.
  void all_gather(std::vector<std::span<std::byte>> rooms, Call call,
                  DataType dtype = DataType::kUint8);

  /// Ends when every rank has called it and this rank's earlier collectives have ended.
  void barrier(Call call);

  /// Matched by (sender, tag), in the order of the calls. The received length must be the expected
  /// one.
  void send(std::span<const std::byte> data, std::uint32_t to, std::int32_t tag, Call call);
  void recv(std::span<std::byte> data, std::uint32_t from, std::int32_t tag, Call call);

  /// A sparse all-reduce of float32 entries that are selected already (ascending indices below d,
  /// at most options.k): what is measured where selection is somebody else's. The result has up to
  /// min(d, k) entries, that of `topk` up to min(d, k * ranks): both spans need room for as many.
  struct Preselected {
    std::span<const std::uint32_t> indices;
    std::span<const float> values;
    std::span<std::uint32_t> result_indices;
    std::span<float> result_values;
    std::uint64_t* result_count = nullptr;
  };
  void exchange(const Preselected& entries, std::uint64_t d, const SparseOptions& options,
                Call call);

  /// Fails everything under way on this rank with Error{kAborted} and ends the group; the other
  /// ranks are told.
  void abort(const std::string& reason);

  /// Why the group is over, where it is. Asks the engine's thread.
  [[nodiscard]] std::optional<ErrorKind> failure() const;

  [[nodiscard]] Statistics statistics() const;

 private:
  void submit(engine::OperationSpec spec, Call call);
  void check_rank(std::uint32_t rank, const char* role) const;

  std::shared_ptr<Process> process_;
  std::shared_ptr<bootstrap::KeyValueStore> addresses_;  // let go of here, not by the engine
  std::shared_ptr<engine::Group> group_;
  std::atomic<std::int64_t> timeout_nanoseconds_;
};

}  // namespace gtopk
