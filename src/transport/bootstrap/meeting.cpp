// Bootstrap: a meeting, as every rank except 0 sees it.
#include "src/transport/bootstrap/meeting.hpp"

#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "src/transport/bootstrap/backoff.hpp"
#include "src/transport/bootstrap/meeting_leader.hpp"
#include "src/transport/bootstrap/meeting_record.hpp"

namespace gtopk::meeting {
namespace {

using std::chrono::milliseconds;
using transport::Duration;

constexpr milliseconds kFirstSlice{50};
constexpr milliseconds kLongestSlice{1000};

class Follower {
 public:
  Follower(KeyValueStore& store, const Presence& self, Duration at_most,
           const transport::JobKey* key)
      : store_(store),
        self_(self),
        key_(key),
        backoff_(at_most, kFirstSlice, kLongestSlice),
        nonce_(draw_nonce()) {}

  Roll meet() {
    arrive();
    for (;;) {
      if (leader_) {
        const std::string key = table_key(*leader_);
        if (const auto bytes = store_.find(key, backoff_.slice())) {
          return read(decode_table(key, *bytes, key_));
        }
        backoff_.waited_in_vain();
        // Another process may have started as rank 0.
        if (!answer_ping(Duration::zero())) {
          arrive_again_if_passed_by();
        }
      } else if (!answer_ping(backoff_.slice())) {
        backoff_.waited_in_vain();
        arrive_again_if_passed_by();
      }
      if (backoff_.over()) {
        throw late();
      }
    }
  }

 private:
  void arrive() {
    slot_ = store_.add(kArrivals, 1);
    store_.set(arrival_key(slot_), encode(Arrival{.rank = self_.rank, .nonce = nonce_}));
  }

  /// Arrives again if the slot was settled by a rank 0 that met without this rank, or that died
  /// before publishing the table.
  void arrive_again_if_passed_by() {
    const auto first = store_.find(kFirst, Duration::zero());
    if (!first || decode_slot(kFirst, *first) < slot_) {
      return;
    }
    if (answer_ping(Duration::zero())) {
      return;
    }
    store_.remove(arrival_key(slot_));
    arrive();
  }

  /// Answers a rank 0 that asks and that this rank has not answered before.
  bool answer_ping(Duration at_most) {
    const std::string key = ping_key(nonce_);
    const auto bytes = store_.find(key, at_most);
    if (!bytes) {
      return false;
    }
    const Nonce leader = decode_nonce(key, *bytes);
    if (leader == leader_) {
      return false;
    }
    const std::string answer = alive_key(leader, nonce_);
    store_.set(answer, encode(Answer{.nonce = nonce_, .presence = self_}, answer, key_));
    leader_ = leader;
    backoff_.heard_something();
    return true;
  }

  Roll read(Table table) {
    store_.remove(arrival_key(slot_));
    store_.remove(ping_key(nonce_));
    store_.remove(alive_key(*leader_, nonce_));
    // A failure stays in the store, because no rank knows which other ranks have read it.
    if (table.failure) {
      throw Error(*table.failure);
    }
    const std::size_t size = table.roll.size();
    if (size != self_.size) {
      throw Error(
          ErrorKind::kBootstrap,
          fmt::format("group '{}': rank {} was started with {} ranks, the table of rank 0 has {}",
                      self_.group, self_.rank, self_.size, size));
    }
    if (table.nonces[self_.rank] != nonce_ || table.roll[self_.rank] != self_.card) {
      throw Error(ErrorKind::kBootstrap,
                  fmt::format("group '{}': a process other than this one ({}) joined as rank {}: "
                              "were two processes started with the same rank?",
                              self_.group, self_.process, self_.rank));
    }
    const std::string readers = readers_key(*leader_);
    if (store_.add(readers, 1) + 1 == static_cast<std::int64_t>(size)) {
      store_.remove(table_key(*leader_));
      store_.remove(readers);
    }
    return std::move(table.roll);
  }

  [[nodiscard]] Error late() {
    const Duration after = backoff_.whole();
    std::string why = fmt::format("rank 0 has not arrived {}", in_time(after));
    if (leader_) {
      const auto missing = store_.find(missing_key(*leader_), Duration::zero());
      why = missing ? describe_missing(*missing, self_.size, after)
                    : fmt::format("rank 0 has not answered {}", in_time(after));
    }
    return {ErrorKind::kBootstrap, fmt::format("group '{}': {}", self_.group, why)};
  }

  KeyValueStore& store_;
  const Presence& self_;
  const transport::JobKey* key_;
  Backoff backoff_;
  Nonce nonce_;
  std::int64_t slot_ = 0;
  std::optional<Nonce> leader_;  ///< the rank 0 that was answered last
};

}  // namespace

Roll meet(KeyValueStore& store, const Presence& self, Duration at_most,
          const transport::JobKey* key) {
  if (self.rank == 0) {
    return Leader(store, self, at_most, key).meet();
  }
  return Follower(store, self, at_most, key).meet();
}

}  // namespace gtopk::meeting
