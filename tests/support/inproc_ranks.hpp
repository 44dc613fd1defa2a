// Test support: P processes that are none: an engine each over one in-process fabric, stepped in an
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
#include "src/transport/inproc/fabric.hpp"
#include "tests/support/ending.hpp"

namespace gtopk::support {

/// A network drawn from `seed`: what it sends eagerly (nothing, short messages, all) goes by turns.
[[nodiscard]] transport::inproc::FabricOptions network(std::uint64_t seed,
                                                       transport::Duration max_delay = {});

/// The step bound was reached: what a hang looks like here.
class Hang : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InprocRanks {
 public:
  using FabricOptions = transport::inproc::FabricOptions;
  static constexpr transport::Duration kTimeout = std::chrono::seconds(30);
  static constexpr std::uint64_t kStepBound = 2'000'000;

  /// hosts: their names, by rank; none: usual_hosts().
  explicit InprocRanks(std::uint32_t ranks, FabricOptions options = {},
                       std::vector<std::string> hosts = {});
  InprocRanks(const InprocRanks&) = delete;
  InprocRanks& operator=(const InprocRanks&) = delete;
  InprocRanks(InprocRanks&&) = delete;
  InprocRanks& operator=(InprocRanks&&) = delete;
  /// Fails the test when it has dropped an ending unseen (support/ending.hpp); a rank that is dead,
  /// or stopped to the last, owes none.
  ~InprocRanks();

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(seats_.size()); }
  [[nodiscard]] transport::inproc::Fabric& fabric() { return *fabric_; }
  [[nodiscard]] engine::Engine& engine(std::uint32_t rank) { return *seats_.at(rank).engine; }
  /// The group of all ranks, made with the object: name "default".
  [[nodiscard]] const std::shared_ptr<engine::Group>& group(std::uint32_t rank) const {
    return seats_.at(rank).group;
  }
  /// The name of every rank's host.
  [[nodiscard]] const std::vector<std::string>& hosts() const { return hosts_; }
  [[nodiscard]] transport::TimePoint now() const { return fabric_->clock().now(); }

  /// A further group, by its members' ranks here; one handle per member, in that order. Members
  /// number it differently.
  std::vector<std::shared_ptr<engine::Group>> make_group(const std::string& name,
                                                         const std::vector<std::uint32_t>& members);

  /// The next group of that rank gets this number: all others are taken.
  void next_group_is(std::uint32_t rank, std::uint32_t number);

  /// Hands an operation to one rank. A timeout of zero becomes kTimeout.
  [[nodiscard]] SharedEnding submit(std::uint32_t rank, engine::OperationSpec spec,
                                    std::shared_ptr<Gate> input = nullptr);
  [[nodiscard]] SharedEnding submit(std::uint32_t rank, const std::shared_ptr<engine::Group>& group,
                                    engine::OperationSpec spec,
                                    std::shared_ptr<Gate> input = nullptr);
  /// One operation on every running rank, until each has ended. By rank; dead and frozen ones stay
  /// "not ended".
  [[nodiscard]] std::vector<SharedEnding> run(
      const std::function<engine::OperationSpec(std::uint32_t)>& spec);

  /// Steps until `done`. Throws Hang.
  void run_until(const std::function<bool()>& done);
  /// Until what was submitted has ended on every running rank.
  void run_all();
  /// Steps for so much virtual time.
  void run_for(transport::Duration time);
  /// Until the network is quiet, operations' remains are gone and stale messages swept.
  void settle();

  void kill(std::uint32_t rank, transport::inproc::Death death);
  void freeze(std::uint32_t rank);
  void thaw(std::uint32_t rank);
  [[nodiscard]] bool running(std::uint32_t rank) const { return seats_.at(rank).running; }

  /// One rank leaves in good order, as EngineThread does; the others keep running.
  void leave(std::uint32_t rank);
  /// Everybody leaves. Messages that nobody received, over all ranks, described.
  std::vector<std::string> close();

 private:
  struct Seat {
    std::unique_ptr<engine::Engine> engine;
    std::shared_ptr<engine::Group> group;
    bool running = true;
    bool dead = false;
    bool closed = false;
  };

  bool step(std::uint32_t rank);
  /// One seeded action, or a step of time when nothing is left to do now.
  void act();
  void pass_time();

  std::unique_ptr<transport::inproc::Fabric> fabric_;
  engine::InlineExecutor executor_;
  std::vector<std::string> addresses_;
  std::vector<std::string> hosts_;
  std::vector<Seat> seats_;
  struct Submitted {
    std::uint32_t rank;
    SharedEnding ending;
  };
  std::vector<Submitted> submitted_;
  Endings endings_;
  std::uint32_t idle_ = 0;
  std::optional<transport::TimePoint> horizon_;  ///< time does not jump beyond it
};

}  // namespace gtopk::support
