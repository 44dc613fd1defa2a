// Engine: a set of ranks that run collectives together, as one process sees it. It knows its
// members, what is in flight and why it failed, but no algorithm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "gtopk/error.hpp"
#include "src/engine/awaited_input.hpp"
#include "src/engine/host_map.hpp"
#include "src/engine/lookup.hpp"
#include "src/engine/metrics.hpp"
#include "src/engine/per_group_state.hpp"
#include "src/engine/receive_lines.hpp"
#include "src/transport/base/tag.hpp"
#include "src/transport/base/transport.hpp"

namespace gtopk::engine {

class Operation;

struct GroupSpec {
  std::string name;
  std::uint32_t rank = 0;          ///< this process's rank
  std::vector<std::string> cards;  ///< Transport::card() or address() of each member, by rank
  /// The number that each member uses for the group (its Engine::reserve_group_id()), indexed by
  /// rank.
  std::vector<std::uint32_t> ids;
  /// Finds a member's address, or that it has left. It is called on a thread that may block, and
  /// may throw. It may be empty if cards are addresses.
  std::function<PeerRecord(std::uint32_t rank, const std::stop_token& stop)> find_peer;
  /// The name of each member's host, indexed by rank. If empty, each member is on its own host.
  std::vector<std::string> hosts{};
};

/// A group's identity, for records that outlive it.
struct GroupIdentity {
  std::string name;
  std::uint32_t rank = 0;            ///< this process's rank
  std::vector<std::string> members;  ///< such as "rank 3 (host node7, pid 4711)", indexed by rank
};

/// A group. It is used only on the engine thread, except for the constant part and the metrics.
class Group {
 public:
  Group(GroupSpec spec, std::vector<transport::PeerId> peers, transport::Transport& transport);

  /// This process's number for the group, which other ranks use in tags of messages to it.
  [[nodiscard]] std::uint32_t id() const { return ids_[rank()]; }
  /// That rank's number for the group, for tags and notices sent to it.
  [[nodiscard]] std::uint32_t id_at(std::uint32_t rank) const { return ids_[rank]; }
  [[nodiscard]] const std::string& name() const { return identity_->name; }
  [[nodiscard]] const std::shared_ptr<const GroupIdentity>& identity() const { return identity_; }
  [[nodiscard]] std::uint32_t rank() const { return identity_->rank; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(peers_.size()); }
  [[nodiscard]] transport::PeerId peer(std::uint32_t rank) const { return peers_.at(rank); }
  /// A member's description: "rank 3 (host node7, pid 4711)".
  [[nodiscard]] const std::string& member(std::uint32_t rank) const {
    return identity_->members.at(rank);
  }
  [[nodiscard]] std::optional<std::uint32_t> rank_of(transport::PeerId peer) const;
  [[nodiscard]] const HostMap& hosts() const { return hosts_; }

  Metrics metrics;

  // Everything from here on is used only on the engine thread.

  /// The number of collectives submitted to the engine so far.
  [[nodiscard]] std::uint64_t arrived() const { return arrived_; }
  /// The number of running operations.
  [[nodiscard]] std::uint32_t in_flight() const { return in_flight_; }
  /// The last operation that started: "all_reduce #17", or empty.
  [[nodiscard]] std::string last_operation() const;

  // The following are used by Failures.

  /// The group's error, once it has failed.
  std::optional<Error> failure;
  /// Collectives aborted by a peer before this rank called them, by sequence number.
  std::map<std::uint64_t, Error> aborted;
  /// Messages withdrawn by their senders that no receive has matched yet, by the header's tag and
  /// the serial number. A message sent before one that a receive of that tag has matched is no
  /// longer listed.
  std::set<std::pair<transport::Tag, std::uint32_t>> withdrawn;
  /// Headers, and any payload sent with them, that arrived at a receive that had failed. They
  /// belong to the next receive of the same tag.
  std::map<transport::Tag, std::vector<std::byte>> unread;
  /// Whether there is a header with that tag that no receive has matched.
  [[nodiscard]] bool has_header(transport::Tag header, transport::Transport& transport) const {
    return unread.contains(header) || transport.lies_there(header);
  }

  // The following is used by FlowControl, indexed by rank.
  struct Credit {
    std::uint64_t ahead = 0;    ///< bytes sent to the rank that no receive is known to have matched
    std::uint64_t matched = 0;  ///< bytes from the rank, matched or discarded, not returned
  };
  std::vector<Credit> credits;

  PerGroupState per_group_state;
  ReceiveLines receive_lines;
  /// See GroupSpec; empty once the group is removed.
  std::function<PeerRecord(std::uint32_t rank, const std::stop_token& stop)> find_peer;

 private:
  std::vector<std::uint32_t> ids_;
  std::vector<transport::PeerId> peers_;
  std::shared_ptr<const GroupIdentity> identity_;
  HostMap hosts_;

  friend class Scheduler;
  /// The number of collectives so far. The first one has number 1, as in torch.
  std::uint64_t called_ = 0;  // guarded by the queue's mutex
  std::uint64_t arrived_ = 0;
  std::uint32_t in_flight_ = 0;
  /// Running collectives, keyed by sequence number.
  std::map<std::uint64_t, Operation*> running_;
  /// The number of running collectives that are waiting at a gate.
  std::size_t at_gate_ = 0;
  /// Operations waiting to be put in flight.
  std::deque<std::unique_ptr<Operation>> waiting_;
  /// Operations whose input is still being copied, by number.
  std::map<std::uint64_t, std::unique_ptr<AwaitedInput>> inputs_;
  /// Messages whose input is still being copied, in call order.
  std::deque<std::pair<std::unique_ptr<Operation>, std::unique_ptr<AwaitedInput>>> held_;
  /// Operations with a Turn; the front one holds the links.
  std::vector<Operation*> line_;
  /// Whether waiting operations are being started.
  bool starting_ = false;
  std::string last_name_;
  std::uint64_t last_sequence_ = 0;
};

}  // namespace gtopk::engine
