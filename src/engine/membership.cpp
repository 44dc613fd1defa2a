#include "src/engine/membership.hpp"

#include <algorithm>

namespace gtopk::engine {

using transport::PeerId;

void Membership::watch(const Group& group) {
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    const PeerId peer = group.peer(rank);
    if (standings_.size() <= peer) {
      standings_.resize(peer + 1);
    }
    if (rank == group.rank()) {
      standings_[peer] = {.contacted = true, .settled = true, .last_words = {}};
    } else {
      standings_[peer].member = true;
      control_.watch(peer);
    }
  }
}

void Membership::begin_contact(PeerId peer) {
  standings_[peer].contacted = true;
  say_hello(peer);
  if (in_doubt(peer)) {
    contacted_.push_back(peer);
  }
}

/// If no connection could be started because an address was not found, the next contact retries.
void Membership::hello_lost(PeerId peer) {
  standings_[peer].greeted = false;
  standings_[peer].contacted = false;
}

// The hello tells the peer this process's address, so that the peer need not look it up to answer.
void Membership::say_hello(PeerId peer) {
  Standing& standing = standings_[peer];
  if (standing.left || std::exchange(standing.greeted, true)) {
    return;
  }
  std::string address = transport_.address();
  if (address.size() > Notice::kMaxText) {
    address.clear();
  }
  control_.send(peer, {NoticeKind::kHello, ErrorKind::kAborted, 0, 0, std::move(address)});
}

void Membership::answer_hello(PeerId peer) {
  if (leaving_) {
    say_goodbye_to(peer);
  } else {
    say_hello(peer);
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
  tell_peer(group.peer(rank), notice);
  group.metrics.add(Metric::kNoticesSent);
}

void Membership::tell_members(Group& group, const Notice& notice) {
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    if (rank != group.rank() && !has_left(group.peer(rank))) {
      tell(group, rank, notice);
    }
  }
}

// The rank that saw the failure may die itself before it has told all members, and members may no
// longer wait for a rank that hears late (failure_acks.hpp).
void Membership::pass_on(Group& group, PeerId from, const Notice& notice) {
  for (std::uint32_t rank = 0; rank < group.size(); ++rank) {
    const PeerId peer = group.peer(rank);
    if (rank != group.rank() && peer != from && !has_left(peer) && transport_.connected(peer)) {
      tell(group, rank, notice);
    }
  }
}

void Membership::tell_peer(PeerId peer, const Notice& notice) {
  contact(peer);
  control_.send(peer, notice);
}

void Membership::departed(PeerId peer, const std::string& last_words) {
  standings_[peer].left = true;
  settle(peer);
  if (!last_words.empty()) {
    standings_[peer].last_words = last_words;
  }
}

void Membership::failed(PeerId peer) {
  standings_[peer].left = standings_[peer].failed = true;
  settle(peer);
}

void Membership::give_up(PeerId peer) {
  settle(peer);
  transport_.give_up(peer);
}

void Membership::say_goodbye(const std::string& last_words) {
  leaving_ = true;
  last_words_ = last_words;
  for (const PeerId peer : control_.peers()) {
    // This includes peers that have already said goodbye: they wait for ours, and over shared
    // memory they do not see a connection end.
    if (transport_.connected(peer)) {
      say_goodbye_to(peer);
    }
  }
}

void Membership::return_goodbye(PeerId peer) {
  // The peer waits for our goodbye. If this process has only ever answered the peer, it sends
  // nothing more; without an endpoint to the peer, the peer would not see our end over shared
  // memory.
  if (!standings_[peer].contacted || !transport_.connected(peer)) {
    say_goodbye_to(peer);
  }
}

void Membership::say_goodbye_to(PeerId peer) {
  if (!farewells_.insert(peer).second) {
    return;  // already said in answer to the peer's goodbye
  }
  transport_.expect_departure(peer);
  const std::uint32_t connections = transport_.connections(peer);
  for (std::uint32_t connection = 0; connection < connections; ++connection) {
    control_.send(peer,
                  {NoticeKind::kGoodbye, ErrorKind::kAborted, 0, connections - 1, last_words_},
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

bool Membership::unaware_peer() const {
  for (PeerId peer = 0; peer < standings_.size(); ++peer) {
    const Standing& standing = standings_[peer];
    const bool knows = standing.left ? !standing.failed : farewells_.contains(peer);
    if (standing.member && !knows) {
      return true;
    }
  }
  return false;
}

bool Membership::anyone_has_left() const {
  return std::ranges::any_of(standings_, &Standing::left);
}

bool Membership::stop_listening() {
  control_.stop();
  return control_.quiet();
}

}  // namespace gtopk::engine
