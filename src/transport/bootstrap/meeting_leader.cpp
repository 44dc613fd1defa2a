#include "src/transport/bootstrap/meeting_leader.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gtopk::meeting {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::Duration;

constexpr milliseconds kFirstLeaderSlice{10};
constexpr milliseconds kLongestLeaderSlice{250};
/// How long to wait for other ranks after a failure, so that they also learn the cause.
constexpr std::chrono::seconds kGrace{3};

}  // namespace

Leader::Leader(KeyValueStore& store, const Presence& self, Duration at_most,
               const transport::JobKey* key)
    : store_(store),
      self_(self),
      key_(key),
      backoff_(at_most, kFirstLeaderSlice, kLongestLeaderSlice),
      nonce_(draw_nonce()),
      expected_(self.size) {
  if (self.refusal) {
    fail(*self.refusal);
  }
}

void Leader::fail(const Error& cause) {
  if (failure_) {
    return;
  }
  failure_ = Error(cause.kind(), fmt::format("group '{}': {}", self_.group, cause.what()));
  failed_at_ = steady_clock::now();
}

Roll Leader::meet() {
  if (const auto first = store_.find(kFirst, Duration::zero())) {
    next_slot_ = decode_slot(kFirst, *first) + 1;
  }
  read_slots();
  while (!complete()) {
    if (failure_ && steady_clock::now() - failed_at_ >= kGrace) {
      break;
    }
    if (backoff_.over()) {
      fail(Error(ErrorKind::kBootstrap,
                 describe_missing(fmt::format("{}", fmt::join(missing(), ", ")), self_.size,
                                  backoff_.whole())));
      break;
    }
    wait_for_somebody();
  }
  Table table;
  if (failure_) {
    table.failure = failure_;
    publish(table);
    throw Error(*failure_);
  }
  table.nonces.push_back(nonce_);
  table.roll.push_back(self_.card);
  for (const auto& [rank, entry] : answers_) {
    const Answer& answer = entry.second;
    table.nonces.push_back(answer.nonce);
    table.roll.push_back(answer.presence.card);
  }
  publish(table);
  clean_up();
  return table.roll;
}

/// Reads the slots taken since the last time, and the slots that were still open then.
void Leader::read_slots() {
  const std::int64_t handed_out = store_.add(kArrivals, 0);
  std::erase_if(holes_,
                [this](const Hole& hole) { return read_slot(hole.slot, Duration::zero()); });
  for (; next_slot_ <= handed_out; ++next_slot_) {
    if (!read_slot(next_slot_, Duration::zero())) {
      holes_.push_back({.slot = next_slot_});
    }
  }
}

bool Leader::read_slot(std::int64_t slot, Duration at_most) {
  const std::string key = arrival_key(slot);
  const auto bytes = store_.find(key, at_most);
  if (!bytes) {
    return false;
  }
  const Arrival arrival = decode_arrival(key, *bytes);
  newest_[arrival.rank] = guests_.size();
  guests_.push_back({.slot = slot, .arrival = arrival});
  store_.set(ping_key(arrival.nonce), encode(nonce_));
  backoff_.heard_something();
  return true;
}

/// The latest arrival of the first missing rank; null if none of its arrivals can be alive.
Leader::Guest* Leader::likely_next() {
  Guest* likely = nullptr;
  for (const std::uint32_t rank : missing()) {
    const auto newest = newest_.find(rank);
    if (newest == newest_.end() || guests_[newest->second].doubted) {
      return nullptr;
    }
    if (likely == nullptr) {
      likely = &guests_[newest->second];
    }
  }
  return likely;
}

std::vector<std::uint32_t> Leader::missing() const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 1; rank < expected_; ++rank) {
    if (!answers_.contains(rank)) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

bool Leader::complete() const { return answers_.size() + 1 >= expected_; }

/// Waits for the next action of the first missing rank. If it does not come, the other ranks are
/// checked.
void Leader::wait_for_somebody() {
  const Duration slice = backoff_.slice();
  const auto fresh =
      std::ranges::find_if(holes_, [](const Hole& hole) { return !hole.waited_for; });
  if (fresh != holes_.end()) {
    fresh->waited_for = true;
    if (read_slot(fresh->slot, slice)) {
      holes_.erase(fresh);
      return;
    }
  } else if (Guest* const likely = likely_next()) {
    if (listen(*likely, slice)) {
      return;
    }
    likely->doubted = true;
  } else {
    if (read_slot(next_slot_, slice)) {
      ++next_slot_;
      return;
    }
    for (Guest& guest : guests_) {
      guest.doubted = false;
    }
  }
  backoff_.waited_in_vain();
  tell_who_is_missing();
  read_slots();
  ask_everybody();
}

void Leader::ask_everybody() {
  for (Guest& guest : guests_) {
    if (!guest.answered) {
      static_cast<void>(listen(guest, Duration::zero()));
    }
  }
}

bool Leader::listen(Guest& guest, Duration at_most) {
  const std::string key = alive_key(nonce_, guest.arrival.nonce);
  const auto bytes = store_.find(key, at_most);
  if (!bytes) {
    return false;
  }
  guest.answered = true;
  backoff_.heard_something();
  weigh(guest, decode_answer(key, *bytes, key_));
  return true;
}

void Leader::weigh(const Guest& guest, const Answer& answer) {
  const std::uint32_t rank = guest.arrival.rank;
  const auto [entry, fresh] = answers_.try_emplace(rank, guest.slot, answer);
  if (!fresh) {
    if (entry->second.first > guest.slot) {
      return;  // the slot is from an earlier run of this rank
    }
    entry->second = {guest.slot, answer};
  }
  const Presence& presence = answer.presence;
  if (answer.version != kVersion && answer.version != kSealedVersion) {
    fail(Error(ErrorKind::kBootstrap,
               fmt::format("rank {} uses version {} of gtopk's meeting protocol, rank 0 uses {}: "
                           "install the same gtopk on every host",
                           rank, answer.version, kVersion)));
    return;
  }
  if (answer.secret != Secret::kSame) {
    fail(Error(ErrorKind::kBootstrap,
               fmt::format("{}: set the same GTOPK_SECRET on all ranks",
                           compare(fmt::format("rank {} ({})", rank, presence.process),
                                   answer.secret, fmt::format("rank 0 ({})", self_.process)))));
    return;
  }
  if (presence.size != self_.size) {
    expected_ = std::max(expected_, presence.size);
    fail(Error(ErrorKind::kBootstrap,
               fmt::format("rank {} ({}) was started with {} ranks, rank 0 ({}) with {}", rank,
                           presence.process, presence.size, self_.process, self_.size)));
  } else if (presence.refusal) {
    fail(Error(presence.refusal->kind(),
               fmt::format("rank {} ({}): {}", rank, presence.process, presence.refusal->what())));
  } else if (answer.nonce != guest.arrival.nonce || presence.rank != rank || rank >= self_.size) {
    fail(Error(ErrorKind::kBootstrap,
               fmt::format("the process that arrived as rank {} answered as rank {} of {} ({})",
                           rank, presence.rank, presence.size, presence.process)));
  }
}

void Leader::tell_who_is_missing() {
  std::vector<std::uint32_t> ranks = missing();
  if (ranks == told_missing_) {
    return;
  }
  store_.set(missing_key(nonce_), fmt::format("{}", fmt::join(ranks, ", ")));
  told_missing_ = std::move(ranks);
}

/// The slots are settled before any rank can continue and arrive for the next meeting.
void Leader::publish(const Table& table) {
  if (next_slot_ > 1) {
    store_.set(kFirst, encode(static_cast<Nonce>(next_slot_ - 1)));
  }
  const std::string key = table_key(nonce_);
  store_.set(key, encode(table, key, key_));
}

/// Removes records left by dead ranks, and its own records. Living ranks remove their own keys.
void Leader::clean_up() {
  for (const Guest& guest : guests_) {
    if (guest.answered) {
      continue;
    }
    store_.remove(arrival_key(guest.slot));
    store_.remove(ping_key(guest.arrival.nonce));
  }
  if (!told_missing_.empty()) {
    store_.remove(missing_key(nonce_));
  }
}

}  // namespace gtopk::meeting
