// Bootstrap: rank 0's side of a meeting.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/transport/bootstrap/backoff.hpp"
#include "src/transport/bootstrap/meeting.hpp"
#include "src/transport/bootstrap/meeting_record.hpp"

namespace gtopk::meeting {

class Leader {
 public:
  Leader(KeyValueStore& store, const Presence& self, transport::Duration at_most,
         const transport::JobKey* key);
  [[nodiscard]] Roll meet();

 private:
  /// A rank that took a slot; a dead one never answers.
  struct Guest {
    std::int64_t slot = 0;
    Arrival arrival;
    bool answered = false;
    bool doubted = false;  ///< did not answer in time; look for another arrival first
  };
  /// A slot that was taken but not filled when checked.
  struct Hole {
    std::int64_t slot = 0;
    bool waited_for = false;
  };

  void read_slots();
  [[nodiscard]] bool read_slot(std::int64_t slot, transport::Duration at_most);
  void ask_everybody();
  [[nodiscard]] bool listen(Guest& guest, transport::Duration at_most);
  void weigh(const Guest& guest, const Answer& answer);
  void wait_for_somebody();
  [[nodiscard]] Guest* likely_next();
  [[nodiscard]] std::vector<std::uint32_t> missing() const;
  [[nodiscard]] bool complete() const;
  void tell_who_is_missing();
  void fail(const Error& cause);
  void publish(const Table& table);
  void clean_up();

  KeyValueStore& store_;
  const Presence& self_;
  const transport::JobKey* key_;
  Backoff backoff_;
  Nonce nonce_;
  std::int64_t next_slot_ = 1;
  std::vector<Guest> guests_;
  std::map<std::uint32_t, std::size_t> newest_;  ///< latest arrival by rank
  std::vector<Hole> holes_;
  std::map<std::uint32_t, std::pair<std::int64_t, Answer>> answers_;  ///< slot, answer by rank
  std::uint32_t expected_;  ///< the largest size that any living rank was started with
  std::optional<Error> failure_;
  transport::TimePoint failed_at_{};
  std::vector<std::uint32_t> told_missing_;
};

}  // namespace gtopk::meeting
