#include "src/engine/membership.hpp"

#include <algorithm>

namespace gtopk::engine {

using transport::PeerId;

void Membership::watch(const Group& group) {
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    if (rank != group.rank()) {
      control_.watch(group.peer(rank));
    }
  }
}

std::vector<std::pair<PeerId, Notice>> Membership::take_notices() {
  auto notices = control_.take();
  for (const auto& [from, notice] : notices) {
    heard_[from] = clock_.now();
  }
  return notices;
}

bool Membership::heard_since(PeerId peer, transport::TimePoint time) const {
  const auto heard = heard_.find(peer);
  return heard != heard_.end() && heard->second >= time;
}

void Membership::tell(Group& group, std::uint32_t rank, Notice notice) {
  notice.group = group.id_at(rank);
  notice.answer_group = group.id();
  control_.send(group.peer(rank), notice);
  group.metrics.add(Metric::kNoticesSent);
}

void Membership::tell_members(Group& group, const Notice& notice) {
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    if (rank != group.rank() && !has_left(group.peer(rank))) {
      tell(group, rank, notice);
    }
  }
}

// The rank that saw the failure may die itself before it has told everybody, and a rank that hears
// late may be one for which nobody stays any longer (failure_acks.hpp).
void Membership::pass_on(Group& group, PeerId from, const Notice& notice) {
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    const PeerId peer = group.peer(rank);
    if (rank != group.rank() && peer != from && !has_left(peer) && transport_.connected(peer)) {
      tell(group, rank, notice);
    }
  }
}

void Membership::note_senders(const Group& group) {
  std::set<std::uint32_t> senders;
  transport_.sift([&](transport::Tag tag) {
    if (transport::kind_of(tag) != transport::TagKind::kControl &&
        transport::group_of(tag) == group.id() && transport::source_of(tag) < group.size()) {
      senders.insert(transport::source_of(tag));
    }
    return true;
  });
  for (const std::uint32_t rank : senders) {
    const PeerId peer = group.peer(rank);
    if (rank != group.rank() && !has_left(peer) && !transport_.connected(peer)) {
      transport_.prepare(peer);
      connected_only_there_.insert(peer);
    }
  }
}

void Membership::say_goodbye() {
  for (const PeerId peer : control_.peers()) {
    // Also to peers that said it before: they wait for ours, and over shared memory see no
    // connection end. The same holds for a peer that has told or sent us something and got no
    // answer, if only it has an endpoint.
    const bool only_it_connects =
        (control_.heard(peer) || connected_only_there_.contains(peer)) && !has_left(peer);
    if (transport_.connected(peer) || only_it_connects) {
      say_goodbye_to(peer);
    }
  }
}

void Membership::return_goodbye(PeerId peer) {
  // It waits for ours. Without an endpoint to it, it would not see our end over shared memory.
  if (!transport_.connected(peer)) {
    say_goodbye_to(peer);
  }
}

void Membership::say_goodbye_to(PeerId peer) {
  if (!farewells_.insert(peer).second) {
    return;  // already said, in answer to its own
  }
  transport_.expect_departure(peer);
  const std::uint32_t connections = transport_.connections(peer);
  for (std::uint32_t connection = 0; connection < connections; ++connection) {
    control_.send(peer, {NoticeKind::kGoodbye, ErrorKind::kAborted, 0, connections - 1, {}},
                  connection);
  }
}

bool Membership::farewell_said() const {
  if (control_.sending()) {
    return false;
  }
  return std::ranges::all_of(
      control_.peers(), [&](PeerId peer) { return has_left(peer) || !transport_.connected(peer); });
}

bool Membership::stop_listening() {
  control_.stop();
  return control_.quiet();
}

}  // namespace gtopk::engine
