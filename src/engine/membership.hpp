// Engine: which peers are present: which ones this process has greeted, which have answered, when
// they were last heard from, which have left, and how this process says goodbye. Notices to other
// engines are sent here; failures.hpp and probes.hpp define their meaning.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
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
  /// `key` is null if the job has no secret.
  Membership(transport::Transport& transport, const transport::Clock& clock,
             std::shared_ptr<const transport::JobKey> key)
      : transport_(transport),
        clock_(clock),
        control_(transport, std::move(key), [this](transport::PeerId peer) { hello_lost(peer); }) {}

  /// Listens to every other member of the group.
  void watch(const Group& group);
  /// Returns the notices received since the last call.
  [[nodiscard]] std::vector<std::pair<transport::PeerId, Notice>> take_notices();
  /// Whether the peer has sent a notice at `time` or later.
  [[nodiscard]] bool heard_since(transport::PeerId peer, transport::TimePoint time) const;

  /// Whether a control message with that tag can be from a peer.
  [[nodiscard]] bool knows(transport::Tag control) const { return control_.knows(control); }

  /// Must be called before anything is sent to the peer or expected from it. Says hello the first
  /// time.
  void contact(transport::PeerId peer) {
    if (!standings_[peer].contacted) {
      begin_contact(peer);
    }
  }
  /// Peers that were contacted since the last call and had not answered before.
  [[nodiscard]] std::vector<transport::PeerId> take_contacted() {
    return std::exchange(contacted_, {});
  }
  /// Answers a peer's hello with a hello, or with a goodbye if this process is leaving.
  void answer_hello(transport::PeerId peer);
  /// See Control.
  [[nodiscard]] bool wants_proof() const { return control_.wants_proof(); }
  /// The same, but only for a peer that has not answered. For one that has answered, a stranger's
  /// notice means nothing.
  [[nodiscard]] bool has_refused(transport::PeerId peer) const {
    return in_doubt(peer) && control_.has_refused(peer);
  }
  /// Whether the peer has neither answered nor left, so that it may have ended.
  [[nodiscard]] bool in_doubt(transport::PeerId peer) const { return !standings_[peer].settled; }
  /// Marks the peer as no longer in doubt: it has answered, and so will say goodbye to this
  /// process, or was given up.
  void settle(transport::PeerId peer) { standings_[peer].settled = true; }

  // Notices of a group count in its statistics.
  void tell(Group& group, std::uint32_t rank, Notice notice);
  /// Tells every other member that has not left.
  void tell_members(Group& group, const Notice& notice);
  /// Tells the members that this process is connected to, except `from`.
  void pass_on(Group& group, transport::PeerId from, const Notice& notice);
  /// Sends a notice for a group that does not exist here.
  void tell_peer(transport::PeerId peer, const Notice& notice);

  /// Records that the peer has left in order. `last_words` is the reason, if it gave one.
  void departed(transport::PeerId peer, const std::string& last_words);
  /// Records that the peer is gone, or cannot be reached from here.
  void failed(transport::PeerId peer);
  [[nodiscard]] bool has_left(transport::PeerId peer) const { return standings_[peer].left; }
  [[nodiscard]] const std::string& last_words(transport::PeerId peer) const {
    return standings_[peer].last_words;
  }

  /// Closes the endpoint to the peer by force.
  void give_up(transport::PeerId peer);

  /// Tells every connected peer that this process leaves, and the reason, if any; farewell_said()
  /// is true once all of them have answered.
  void say_goodbye(const std::string& last_words);
  /// Whether this is the last of a peer's goodbyes, which arrive one per connection.
  [[nodiscard]] bool is_last_goodbye(transport::PeerId peer, const Notice& goodbye) {
    return goodbyes_[peer]++ >= goodbye.sequence;
  }
  /// Answers a peer's goodbye if the peer would not notice the end of this process.
  void return_goodbye(transport::PeerId peer);
  [[nodiscard]] bool farewell_said() const;
  /// Whether some peer cannot be told goodbye, or has neither left nor been told, so that it may
  /// still contact this process.
  [[nodiscard]] bool unaware_peer() const;
  [[nodiscard]] bool anyone_has_left() const;
  /// Peers that have not received a notice yet.
  [[nodiscard]] std::vector<transport::PeerId> unsent() const { return control_.unsent(); }
  /// Cancels posted receives; the transport must progress until this returns true.
  [[nodiscard]] bool stop_listening();

 private:
  struct Standing {
    bool member = false;     ///< in a group, and not this process itself
    bool contacted = false;  ///< this process has contacted it on its own initiative
    bool greeted = false;    ///< this process has said hello
    bool settled = false;    ///< no longer in doubt
    bool left = false;
    bool failed = false;  ///< left, but may be alive, and unaware of this process
    std::string last_words;
  };

  void begin_contact(transport::PeerId peer);
  void hello_lost(transport::PeerId peer);
  void say_hello(transport::PeerId peer);
  void say_goodbye_to(transport::PeerId peer);

  transport::Transport& transport_;
  const transport::Clock& clock_;
  Control control_;
  std::vector<Standing> standings_;  ///< indexed by PeerId
  std::vector<transport::PeerId> contacted_;
  /// When each peer's last notice arrived.
  std::map<transport::PeerId, transport::TimePoint> heard_;
  /// The number of goodbyes that have arrived from each peer.
  std::map<transport::PeerId, std::uint64_t> goodbyes_;
  bool leaving_ = false;
  std::string last_words_;
  /// Peers to which this process has said goodbye.
  std::set<transport::PeerId> farewells_;
};

}  // namespace gtopk::engine
