// Programs: which rank this is, whether started by hand or by any launcher, and the group of all
// ranks. It does not measure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "gtopk/communicator.hpp"
#include "gtopk/launch.hpp"
#include "gtopk/memory.hpp"
#include "tools/programs/gpu.hpp"

namespace gtopk::programs {

/// The command line's options for the job.
struct JobOptions {
  std::optional<std::uint32_t> rank{};
  std::optional<std::uint32_t> ranks{};
  std::string rendezvous{};  ///< HOST:PORT
  double timeout = 60;       ///< seconds
};

void add_job_options(CLI::App& app, JobOptions& options);

/// Returns the timeout of the meeting and of each operation. Throws UsageError.
[[nodiscard]] std::chrono::nanoseconds timeout_of(const JobOptions& options);

/// Parses "10.0.0.1:29600" or "[::1]:29600". Throws UsageError.
[[nodiscard]] LaunchEnvironment rendezvous_at(const std::string& text);

/// Takes rank and size from the first of these that provides them: --rank and --ranks; RANK and
/// WORLD_SIZE (torchrun); the variables of Open MPI's mpirun; the variables of srun; PMIx. The
/// rendezvous is --rendezvous, or MASTER_ADDR and MASTER_PORT, or comes through PMIx. If nothing is
/// given, this is a single rank. Throws UsageError, Error{kBootstrap}.
[[nodiscard]] LaunchEnvironment launched(const JobOptions& options);

/// Returns the store in which the ranks meet; null for one rank. From here on, errors name this
/// rank.
[[nodiscard]] std::shared_ptr<KeyValueStore> join(const LaunchEnvironment& environment,
                                                  std::chrono::nanoseconds timeout);

/// This rank in the group of all ranks.
class Job {
 public:
  /// Meets the other ranks. Throws as Communicator does.
  Job(const LaunchEnvironment& environment, std::chrono::nanoseconds timeout,
      const std::shared_ptr<KeyValueStore>& store);

  [[nodiscard]] std::uint32_t rank() const { return group_->rank(); }
  [[nodiscard]] std::uint32_t size() const { return group_->size(); }
  [[nodiscard]] Communicator& group() { return *group_; }
  /// The transport: "UCX 1.22.0, transports ...".
  [[nodiscard]] const std::string& transport() const { return process_->transport(); }
  /// The machine names according to the kernel, by rank.
  [[nodiscard]] const std::vector<std::string>& machines() const { return machines_; }

  /// Runs the operation, and throws its error.
  void run(Collective collective);
  /// Begins the operation. `input` and `keepalive` are as in Call. `number` is set to the
  /// operation's number in its group.
  [[nodiscard]] std::future<void> begin(Collective collective,
                                        std::shared_ptr<Gate> input = nullptr,
                                        std::uint64_t* number = nullptr,
                                        std::shared_ptr<void> keepalive = nullptr);
  /// Lets calls take this GPU's memory, if the transport does. The GPU must outlive them.
  void use(const Gpu& gpu);
  [[nodiscard]] bool takes(Memory::Kind kind, std::uint32_t rank) const {
    return group_->takes(kind, rank);
  }
  /// Whether messages between this rank and all others may lie in memory of that kind.
  [[nodiscard]] bool takes(Memory::Kind kind) const;
  void barrier() { run(gtopk::barrier()); }
  /// Throws std::runtime_error on every rank if one was started with other words than rank 0.
  /// `words` are options; all ranks have the same number of them, in the same order.
  void check_alike(const std::vector<std::string>& words);
  /// Returns rank 0's value on every rank.
  [[nodiscard]] bool agree(bool value);

  /// Gathers every rank's values, by rank. Each rank has the same number of values.
  template <class T>
  [[nodiscard]] std::vector<std::vector<T>> gathered(const std::vector<T>& mine) {
    std::vector<std::vector<T>> all(size(), std::vector<T>(mine.size()));
    all[rank()] = mine;
    std::vector<std::span<std::byte>> buffers;
    buffers.reserve(all.size());
    for (std::vector<T>& one : all) {
      buffers.push_back(std::as_writable_bytes(std::span(one)));
    }
    run(gtopk::all_gather(std::move(buffers)));
    return all;
  }

 private:
  std::shared_ptr<Process> process_;
  std::unique_ptr<Communicator> group_;
  std::vector<std::string> machines_;
};

/// Returns this machine's name according to the kernel.
[[nodiscard]] std::string machine_name();

/// Describes hosts: "4 ranks on 2 hosts: a (0, 1), b (2, 3)".
[[nodiscard]] std::string described_hosts(const Job& job, const std::vector<std::uint32_t>& hosts);

}  // namespace gtopk::programs
