// Engine: handles what timeouts reveal: operations that are late, ranks that do not answer, and
// messages that no rank receives.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/engine/failures.hpp"
#include "src/engine/flow_control.hpp"
#include "src/engine/group_table.hpp"
#include "src/engine/membership.hpp"
#include "src/engine/scheduler.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::engine {

class Probes {
 public:
  /// How long a rank waits for answers to its probe before it declares the silent ones dead.
  static constexpr transport::Duration kProbeGrace = std::chrono::seconds(2);
  /// The same for ranks that have never answered this one: they may have to be looked up and
  /// connected before the probe reaches them.
  static constexpr transport::Duration kLongestProbe = std::chrono::milliseconds(4500);
  /// How long a failed operation's buffers may stay in the network, at peers that do not answer,
  /// before the endpoints to those peers are closed by force.
  static constexpr transport::Duration kLingerBound = std::chrono::seconds(5);

  Probes(transport::Transport& transport, const transport::Clock& clock, const GroupTable& groups,
         Scheduler& scheduler, Membership& membership, FlowControl& flow_control,
         Failures& failures)
      : transport_(transport),
        clock_(clock),
        groups_(groups),
        scheduler_(scheduler),
        membership_(membership),
        flow_control_(flow_control),
        failures_(failures) {}

  /// How long a message may still be on its way to a rank after that rank's goodbye: a long message
  /// that it receives may end later than the goodbye arrives.
  static constexpr transport::Duration kDepartureGrace = std::chrono::seconds(1);

  /// Checks every deadline, probes late operations, and acts on the answers.
  void check_deadlines(transport::TimePoint now);
  /// Must be called when a rank has left. If it does not receive a message within kDepartureGrace,
  /// the operation fails.
  void receiver_left(Operation& operation, std::uint32_t rank);
  /// Must be called when the operation has ended but the network may still hold its buffers.
  void begin_lingering(Operation& operation);

  /// Answers a peer's probe.
  void answer(Group& group, transport::PeerId from, std::uint64_t sequence);
  /// Handles a peer's answer to one of our probes.
  void take_answer(const Group& group, transport::PeerId from, const Notice& notice);
  /// Closes the endpoint to the peer by force, and ends everything that waits for that peer.
  void give_up(transport::PeerId peer);

 private:
  void check_lingering(Operation& operation, transport::TimePoint now);
  void check_waiting(Group& group, transport::TimePoint now);
  void act_on_deadline(Operation& operation, transport::TimePoint now);
  void probe(Operation& operation);
  /// Whether every rank has answered the probe, or the time for answers is over.
  [[nodiscard]] bool is_over(Operation& operation, transport::TimePoint now);
  void conclude(Operation& operation);
  [[nodiscard]] std::string describe_state(const Group& group, std::uint64_t sequence) const;
  [[nodiscard]] std::string describe_place(const Group& group) const;
  void conclude_transfer(Operation& operation, const std::vector<std::string>& silent,
                         const std::vector<std::string>& alive);

  transport::Transport& transport_;
  const transport::Clock& clock_;
  const GroupTable& groups_;
  Scheduler& scheduler_;
  Membership& membership_;
  FlowControl& flow_control_;
  Failures& failures_;
  /// The ranks of groups that have been asked in this round what they are doing. One answer covers
  /// all messages that are late now.
  std::set<std::pair<const Group*, std::uint32_t>> asked_;
};

}  // namespace gtopk::engine
