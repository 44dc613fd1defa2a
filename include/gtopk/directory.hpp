/// @file
/// The interface through which a group's ranks find each other. directory_over
/// (key_value_store.hpp) makes a directory from a job's key-value store; for another kind of
/// rendezvous, such as PMIx or MPI, implement Directory. This header does not depend on the
/// network.
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
  std::string group;       ///< the group's name
  std::uint32_t rank = 0;  ///< this process's rank in the group
  std::uint32_t size = 1;  ///< number of ranks
  std::string card;        ///< what other ranks must know of this rank: a few hundred bytes
  std::string process;     ///< "host node7, pid 4711", for errors
  /// Set if this rank cannot join the group. The card says so too: a directory may ignore this, or
  /// use it to spare the other ranks the wait.
  std::optional<Error> refusal;
};

/// Where processes publish their addresses, and where groups meet. Thread-safe: its functions may
/// be called while other threads block in it.
class Directory {
 public:
  Directory() = default;
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  Directory(Directory&&) = delete;
  Directory& operator=(Directory&&) = delete;
  virtual ~Directory() = default;

  /// Makes `address` available as `name` to every process of the job, for the lifetime of this one.
  /// No other process publishes that name. This process publishes the same pair before each of its
  /// meetings, and when it leaves it publishes instead that it has left. A directory that cannot
  /// replace a value may ignore the latter; processes that have not yet communicated with this one
  /// then take longer to notice that it left. Throws Error{kBootstrap}.
  virtual void publish(std::string_view name, std::string_view address) = 0;

  /// The value last published under `name`; nullopt if `at_most` passes first. Called when two
  /// ranks first communicate, and again while one of them waits for the other's first answer, on a
  /// thread that may block. Throws Error{kBootstrap} if the directory fails.
  [[nodiscard]] virtual std::optional<std::string> lookup(std::string_view name,
                                                          std::chrono::nanoseconds at_most) = 0;

  /// Blocks until every rank of the group has called it; returns all cards by rank, the same on
  /// every rank and never a card of an earlier run. Groups of different names may meet at the same
  /// time; a group of the same name may meet again, with the same or other ranks. Not called for a
  /// group of one. Throws Error{kBootstrap} naming the missing ranks after `at_most`.
  [[nodiscard]] virtual std::vector<std::string> meet(const Presence& self,
                                                      std::chrono::nanoseconds at_most) = 0;

  /// An identity that is equal for directories that share published values, such as the directories
  /// of several groups over one store. A process publishes its departure once per identity.
  [[nodiscard]] virtual const void* place() const { return this; }
};

}  // namespace gtopk
