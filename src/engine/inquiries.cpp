#include "src/engine/inquiries.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "gtopk/error.hpp"
#include "src/engine/operation.hpp"

namespace gtopk::engine {
namespace {

using transport::PeerFailure;
using transport::PeerId;
using transport::TimePoint;

constexpr const char* kProcessEnded = "its process has ended";

/// `error` says why the directory did not answer, or is empty.
std::string describe(const PeerFailure& failure, const std::string& error) {
  if (!error.empty()) {
    return fmt::format("{}. Whether it has left is unknown, because the directory failed: {}",
                       failure.reason, error);
  }
  return fmt::format(
      "{}. It did not leave cleanly{}", failure.reason,
      failure.never_reached ? "" : ": its process was killed, or cannot be reached from here");
}

}  // namespace

Inquiries::Inquiry& Inquiries::found_or_made(PeerId peer) {
  const auto found = std::ranges::find(inquiries_, peer, &Inquiry::peer);
  return found != inquiries_.end() ? *found : inquiries_.emplace_back(Inquiry{.peer = peer});
}

void Inquiries::look_up(PeerId peer) {
  Inquiry& inquiry = found_or_made(peer);
  inquiry.wants_address = clock_.now();
  ask(inquiry);
}

void Inquiries::begin() {
  for (const PeerId peer : membership_.take_contacted()) {
    const bool asked = std::ranges::count(inquiries_, peer, &Inquiry::peer) != 0;
    if (lookups_ != nullptr && membership_.in_doubt(peer) && !asked) {
      ask_later({.peer = peer});
    }
  }
}

bool Inquiries::examine(const PeerFailure& failure) {
  if (lookups_ == nullptr || !membership_.in_doubt(failure.peer)) {
    return false;
  }
  Inquiry& inquiry = found_or_made(failure.peer);
  inquiry.failure = failure;
  if (directory_error_.empty()) {
    ask(inquiry);
  } else {
    judge(failure.peer, {}, directory_error_);
  }
  return true;
}

void Inquiries::address_came(PeerId peer) {
  const auto found = std::ranges::find(inquiries_, peer, &Inquiry::peer);
  if (found != inquiries_.end()) {
    found->wants_address.reset();
  }
}

void Inquiries::ask(Inquiry& inquiry) {
  if (std::exchange(inquiry.asking, true)) {
    return;  // the answer under way is enough
  }
  const PeerId peer = inquiry.peer;
  for (const auto& group : groups_.all()) {
    const auto rank = group->rank_of(peer);
    if (!rank || !group->find_peer) {
      continue;
    }
    lookups_->run([find = group->find_peer,
                   rank = *rank](const std::stop_token& stop) { return find(rank, stop); },
                  [this, peer](PeerRecord record, std::string error) {
                    hooks_.post([this, peer, record = std::move(record), error = std::move(error)] {
                      directory_error_ = error;
                      answered_ = clock_.now();
                      judge(peer, record, error);
                    });
                  });
    return;
  }
  hooks_.post([this, peer] {
    std::erase_if(inquiries_, [&](const Inquiry& each) { return each.peer == peer; });
    transport_.no_address(peer, "this process no longer shares a group with it");
  });
}

void Inquiries::ask_later(Inquiry inquiry) {
  inquiry.asking = false;
  inquiry.due = clock_.now() + inquiry.pause;
  inquiry.pause = std::min(inquiry.pause * 2, kLongestPause);
  inquiries_.push_back(std::move(inquiry));
}

void Inquiries::judge(PeerId peer, const PeerRecord& record, const std::string& error) {
  const auto found = std::ranges::find(inquiries_, peer, &Inquiry::peer);
  if (found == inquiries_.end()) {
    return;
  }
  // The inquiry is removed from the list because the hooks may begin others.
  Inquiry inquiry = std::move(*found);
  inquiries_.erase(found);
  if (is_over(inquiry)) {
    return;  // a peer that has answered says goodbye itself
  }
  if (record.left) {
    hooks_.left(peer, record.last_words);
    transport_.no_address(peer, "it has left");
    return;
  }
  take_address(inquiry, record, error);
  const bool dead = membership_.in_doubt(peer) && transport_.process_ended(peer);
  if (dead && error.empty() && !std::exchange(inquiry.ended, true)) {
    // After that answer, the peer may have told the directory that it leaves, and why.
    inquiry.asking = false;
    ask(inquiries_.emplace_back(std::move(inquiry)));
    return;
  }
  if (inquiry.failure || dead) {
    PeerFailure failure{.peer = peer, .reason = kProcessEnded};
    if (!dead) {
      failure = *std::move(inquiry.failure);
      failure.reason = describe(failure, error);
    }
    hooks_.failed(std::move(failure));
    if (inquiry.wants_address) {
      transport_.no_address(peer, kProcessEnded);
    }
  } else if (inquiry.wants_address || membership_.in_doubt(peer)) {
    ask_later(std::move(inquiry));
  }
}

void Inquiries::take_address(Inquiry& inquiry, const PeerRecord& record, const std::string& error) {
  const PeerId peer = inquiry.peer;
  if (!error.empty()) {
    if (const auto ended = ended_member(peer); ended && *ended != peer) {
      hooks_.failed({.peer = *ended, .reason = kProcessEnded});
    }
  }
  const bool too_early = !error.empty() && inquiry.wants_address &&
                         clock_.now() - *inquiry.wants_address < kDirectoryPatience;
  if (too_early || !std::exchange(inquiry.wants_address, std::nullopt)) {
    return;
  }
  if (!error.empty()) {
    transport_.no_address(peer, error);
    return;
  }
  try {
    transport_.set_address(peer, record.address);
  } catch (const Error& unreadable) {
    transport_.no_address(peer, unreadable.what());
  }
}

void Inquiries::check(TimePoint now) {
  if (now < next_check()) {
    return;
  }
  const bool asks = directory_error_.empty() || now - answered_ >= kDirectoryPause;
  std::vector<PeerId> judged;
  for (Inquiry& inquiry : std::exchange(inquiries_, {})) {
    const bool due = !inquiry.asking && inquiry.due <= now;
    if (due && is_over(inquiry)) {
      continue;
    }
    if (due && !inquiry.wants_address && !awaited(inquiry.peer)) {
      ask_later(std::move(inquiry));
      continue;
    }
    Inquiry& kept = inquiries_.emplace_back(std::move(inquiry));
    if (due && asks) {
      ask(kept);
    } else if (due) {
      judged.push_back(kept.peer);
    }
  }
  for (const PeerId peer : judged) {
    judge(peer, {}, directory_error_);
  }
}

TimePoint Inquiries::next_check() const {
  TimePoint next = TimePoint::max();
  for (const Inquiry& inquiry : inquiries_) {
    next = inquiry.asking ? next : std::min(next, inquiry.due);
  }
  return next;
}

bool Inquiries::awaited(PeerId peer) const {
  return std::ranges::any_of(scheduler_.operations(), [&](const auto& operation) {
    const auto rank = operation->group().rank_of(peer);
    return rank && std::ranges::count(operation->waits_for(), *rank) != 0;
  });
}

std::optional<PeerId> Inquiries::ended_member(PeerId peer) const {
  for (const auto& group : groups_.all()) {
    for (std::uint32_t rank = 0; group->rank_of(peer) && rank < group->size(); ++rank) {
      const PeerId member = group->peer(rank);
      if (!membership_.has_left(member) && transport_.process_ended(member)) {
        return member;
      }
    }
  }
  return std::nullopt;
}

}  // namespace gtopk::engine
