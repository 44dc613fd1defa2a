// Public surface: all that a group needs of the way in which its ranks were started. A job that
// has a key-value store has one already (directory_over, key_value_store.hpp); what has a
// rendezvous of another kind, such as PMIx or MPI, is a Directory of its own. It knows no network.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gtopk/error.hpp"

namespace gtopk {

/// One rank of a group that is about to meet.
struct Presence {
  std::string group;  ///< its name
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::string card;     ///< what the others must know of this rank: bytes, some hundred
  std::string process;  ///< "host node7, pid 4711", for errors
  /// Why this rank cannot be in the group, if it cannot. The card says so as well: a directory may
  /// pass over it, or spare the other ranks the wait.
  std::optional<Error> refusal;
};

/// Where processes publish how they are reached, and where groups meet. Any thread may call, also
/// while others wait in it.
class Directory {
 public:
  Directory() = default;
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  Directory(Directory&&) = delete;
  Directory& operator=(Directory&&) = delete;
  virtual ~Directory() = default;

  /// Keeps `address` under `name` for every process of the job, for as long as this one lives. No
  /// other process publishes that name; this one does so, alike, before each of its meetings.
  /// Throws Error{kBootstrap}.
  virtual void publish(std::string_view name, std::string_view address) = 0;

  /// What was published under `name`; nothing when `at_most` passes first. Asked when two ranks
  /// first talk, on a thread that may wait. Throws Error{kBootstrap} when the directory fails.
  [[nodiscard]] virtual std::optional<std::string> lookup(std::string_view name,
                                                          std::chrono::nanoseconds at_most) = 0;

  /// Blocks until every rank of the group has called it, and returns every rank's card, by rank:
  /// the same on all, and of nobody who is not there now. Groups whose names differ may meet at
  /// the same time; one of the same name may meet again, with the same ranks or with others. Not
  /// called by a group of one. Throws Error{kBootstrap} that names who is missing after `at_most`.
  [[nodiscard]] virtual std::vector<std::string> meet(const Presence& self,
                                                      std::chrono::nanoseconds at_most) = 0;
};

}  // namespace gtopk
