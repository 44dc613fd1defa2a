// Engine: which peers are there: when they were last heard, who has left, and how this process says
// goodbye. Notices to other engines are sent here; failures.hpp and probes.hpp define their
// meaning.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "src/engine/control.hpp"
#include "src/engine/group.hpp"
#include "src/engine/notice.hpp"
#include "src/transport/base/clock.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::engine {

class Membership {
 public:
  Membership(transport::Transport& transport, const transport::Clock& clock)
      : transport_(transport), clock_(clock), control_(transport) {}

  /// Listens to every other member of the group.
  void watch(const Group& group);
  /// Returns the notices received since the last call.
  [[nodiscard]] std::vector<std::pair<transport::PeerId, Notice>> take_notices();
  /// Whether the peer has sent a notice at `time` or later.
  [[nodiscard]] bool heard_since(transport::PeerId peer, transport::TimePoint time) const;

  /// Whether a control message with that tag can be a peer's.
  [[nodiscard]] bool knows(transport::Tag control) const { return control_.knows(control); }

  // Notices of a group are counted as its own.
  void tell(Group& group, std::uint32_t rank, Notice notice);
  /// Tells every other member that has not left.
  void tell_members(Group& group, const Notice& notice);
  /// Tells the members that this process is connected to, except `from`.
  void pass_on(Group& group, transport::PeerId from, const Notice& notice);
  /// Sends a notice for a group that does not exist here.
  void tell_peer(transport::PeerId peer, const Notice& notice) { control_.send(peer, notice); }

  /// Records that the peer is gone, in order or not.
  void departed(transport::PeerId peer) { departed_.insert(peer); }
  [[nodiscard]] bool has_left(transport::PeerId peer) const { return departed_.contains(peer); }

  /// The group is about to end here: members whose messages lie here unreceived, and to whom there
  /// is no connection yet, will be told when this process leaves.
  void note_senders(const Group& group);
  /// Tells every connected peer that this process leaves; farewell_said() is true once all of them
  /// have answered.
  void say_goodbye();
  /// Whether this is the last goodbye that a peer sends, one over each connection.
  [[nodiscard]] bool is_last_goodbye(transport::PeerId peer, const Notice& goodbye) {
    return goodbyes_[peer]++ >= goodbye.sequence;
  }
  /// Answers a peer's goodbye if the peer would not notice the end of this process.
  void return_goodbye(transport::PeerId peer);
  [[nodiscard]] bool farewell_said() const;
  /// Peers that have not taken a notice yet.
  [[nodiscard]] std::vector<transport::PeerId> unsent() const { return control_.unsent(); }
  /// Cancels posted receives; the transport must progress until this returns true.
  [[nodiscard]] bool stop_listening();

 private:
  void say_goodbye_to(transport::PeerId peer);

  transport::Transport& transport_;
  const transport::Clock& clock_;
  Control control_;
  std::set<transport::PeerId> departed_;
  /// When each peer's last notice arrived.
  std::map<transport::PeerId, transport::TimePoint> heard_;
  /// How many of a peer's goodbyes have arrived.
  std::map<transport::PeerId, std::uint64_t> goodbyes_;
  /// Those that note_senders() has found.
  std::set<transport::PeerId> connected_only_there_;
  /// To whom this process has said goodbye.
  std::set<transport::PeerId> farewells_;
};

}  // namespace gtopk::engine
