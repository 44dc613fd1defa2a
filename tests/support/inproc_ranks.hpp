// Test support: P simulated processes: an engine each over one in-process fabric, stepped in an
// order drawn from the fabric's seed, in virtual time. The same seed gives the same run. It knows
// no algorithm.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/engine/compute.hpp"
#include "src/engine/engine.hpp"
#include "src/engine/group.hpp"
#include "src/engine/lookup.hpp"
#include "tests/support/ending.hpp"
#include "tests/transport/inproc/fabric.hpp"

namespace gtopk::support {

/// A network drawn from `seed`. What it sends eagerly (nothing, short messages, everything) and how
/// many connections there are vary in turn.
[[nodiscard]] transport::inproc::FabricOptions network(std::uint64_t seed,
                                                       transport::Duration max_delay = {});
/// The same, with messages that are late by up to 0, 100 or 200 us, in turn.
[[nodiscard]] transport::inproc::FabricOptions uneven_network(std::uint64_t seed);

/// The step bound was reached: how a hang shows here.
class Hang : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InprocRanks {
 public:
  using FabricOptions = transport::inproc::FabricOptions;
  static constexpr transport::Duration kTimeout = std::chrono::seconds(30);
  static constexpr std::uint64_t kStepBound = 2'000'000;

  /// hosts: host names by rank; if empty, usual_hosts(). secrets: by rank; if empty, none has one.
  explicit InprocRanks(std::uint32_t ranks, FabricOptions options = {},
                       std::vector<std::string> hosts = {},
                       const std::vector<std::string>& secrets = {});
  InprocRanks(const InprocRanks&) = delete;
  InprocRanks& operator=(const InprocRanks&) = delete;
  InprocRanks(InprocRanks&&) = delete;
  InprocRanks& operator=(InprocRanks&&) = delete;
  /// Fails the test if an ending was never examined (support/ending.hpp), except those of ranks
  /// that are dead or still stopped.
  ~InprocRanks();

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(seats_.size()); }
  [[nodiscard]] transport::inproc::Fabric& fabric() { return *fabric_; }
  [[nodiscard]] engine::Engine& engine(std::uint32_t rank) { return *seats_.at(rank).engine; }
  /// The group of all ranks, created with this object and named "default".
  [[nodiscard]] const std::shared_ptr<engine::Group>& group(std::uint32_t rank) const {
    return seats_.at(rank).group;
  }
  /// What each rank has published: an address, or that it has left. Unset: lookups of it fail.
  [[nodiscard]] std::vector<std::optional<engine::PeerRecord>>& directory() { return directory_; }
  [[nodiscard]] std::uint64_t failed_lookups() const { return failed_lookups_; }
  /// What happens right after a rank was looked up in the directory.
  void after_lookup(std::function<void(std::uint32_t)> happens) {
    after_lookup_ = std::move(happens);
  }
  /// The name of every rank's host.
  [[nodiscard]] const std::vector<std::string>& hosts() const { return hosts_; }
  [[nodiscard]] transport::TimePoint now() const { return fabric_->clock().now(); }

  /// Another group; `members` are ranks here, and there is one handle per member, in that order.
  /// Members number the group differently.
  std::vector<std::shared_ptr<engine::Group>> make_group(const std::string& name,
                                                         const std::vector<std::uint32_t>& members);

  /// Makes the next group of that rank get this number, by marking all others as taken.
  void next_group_is(std::uint32_t rank, std::uint32_t number);

  /// Hands an operation to one rank. A timeout of zero becomes kTimeout.
  [[nodiscard]] SharedEnding submit(std::uint32_t rank, engine::OperationSpec spec,
                                    std::shared_ptr<Gate> input = nullptr);
  [[nodiscard]] SharedEnding submit(std::uint32_t rank, const std::shared_ptr<engine::Group>& group,
                                    engine::OperationSpec spec,
                                    std::shared_ptr<Gate> input = nullptr);
  /// Runs one operation on every running rank until each has ended. Returns endings by rank; those
  /// of dead and frozen ranks stay "not ended".
  [[nodiscard]] std::vector<SharedEnding> run(
      const std::function<engine::OperationSpec(std::uint32_t)>& spec);

  /// Steps until `done`. Throws Hang.
  void run_until(const std::function<bool()>& done);
  /// Steps until everything submitted has ended on every running rank.
  void run_all();
  /// Steps for this much virtual time.
  void run_for(transport::Duration time);
  /// Steps until the network is quiet, ended operations are cleaned up and stale messages swept.
  void settle();

  void kill(std::uint32_t rank, transport::inproc::Death death);
  void freeze(std::uint32_t rank);
  void thaw(std::uint32_t rank);
  [[nodiscard]] bool running(std::uint32_t rank) const { return seats_.at(rank).running; }

  /// One rank leaves in order, as EngineThread does; the others keep running.
  void leave(std::uint32_t rank) { leave(std::vector{rank}); }
  /// Several at the same time.
  void leave(const std::vector<std::uint32_t>& leavers);
  /// All ranks leave. Returns descriptions of the messages that nobody received, over all ranks.
  std::vector<std::string> close();

 private:
  struct Seat {
    std::unique_ptr<engine::Lookups> lookups;
    std::unique_ptr<engine::Engine> engine;
    std::shared_ptr<engine::Group> group;
    bool running = true;
    bool dead = false;
    bool closed = false;
  };

  bool step(std::uint32_t rank);
  /// One seeded action, or a time step if nothing is left to do now.
  void act();
  void pass_time();

  std::unique_ptr<transport::inproc::Fabric> fabric_;
  engine::InlineExecutor executor_;
  std::vector<std::string> addresses_;
  std::vector<std::optional<engine::PeerRecord>> directory_;
  std::function<void(std::uint32_t)> after_lookup_ = [](std::uint32_t) {};
  std::vector<std::string> hosts_;
  std::vector<Seat> seats_;
  struct Submitted {
    std::uint32_t rank;
    SharedEnding ending;
  };
  std::vector<Submitted> submitted_;
  Endings endings_;
  std::uint32_t idle_ = 0;
  std::optional<transport::TimePoint> horizon_;  ///< time does not jump past it
  std::uint64_t failed_lookups_ = 0;
};

}  // namespace gtopk::support
