/// @file
/// A small shared key-value store of bytes, which is all that ranks need to find each other.
/// torch's Store and gtopk's TCP rendezvous are such stores. To write your own, implement four
/// functions; directory_over() does the rest. A store does not know about ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "gtopk/directory.hpp"

namespace gtopk {

/// A key-value store. Thread-safe; a call that waits may block others.
class KeyValueStore {
 public:
  KeyValueStore() = default;
  KeyValueStore(const KeyValueStore&) = delete;
  KeyValueStore& operator=(const KeyValueStore&) = delete;
  KeyValueStore(KeyValueStore&&) = delete;
  KeyValueStore& operator=(KeyValueStore&&) = delete;
  virtual ~KeyValueStore() = default;

  /// Sets `key`, replacing any earlier value. Throws Error{kBootstrap}.
  virtual void set(std::string_view key, std::string_view value) = 0;

  /// Waits until `key` is set and returns its value; nullopt if `at_most` passes first (0 means not
  /// to wait). Throws Error{kBootstrap} if the store fails.
  [[nodiscard]] virtual std::optional<std::string> find(std::string_view key,
                                                        std::chrono::nanoseconds at_most) = 0;

  /// Like find(), but throws Error{kBootstrap} that names the key and the seconds waited if it
  /// times out.
  [[nodiscard]] std::string get(std::string_view key, std::chrono::nanoseconds at_most);

  /// Adds `delta` to the counter `key` (initially 0) and returns the sum. Counters and values are
  /// separate: get() does not see a counter. Throws Error{kBootstrap}.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;

  /// Removes the value and the counter of `key` if the store can. Best effort: fails silently.
  virtual void remove(std::string_view key) = 0;
};

/// Makes a directory over a store that all ranks of the job share; group names separate the groups.
/// The store may hold keys left by earlier runs. meet() throws the same error on every rank
/// present, naming the missing ones. If `secret` is not empty, ranks seal what they write with it:
/// without the secret, no one can read or replace an address. Ranks with different secrets get an
/// error that names both ranks. See job_secret().
[[nodiscard]] std::shared_ptr<Directory> directory_over(std::shared_ptr<KeyValueStore> job,
                                                        std::string_view secret = {});

/// The same for a group with its own store, as every group has in torch.
[[nodiscard]] std::shared_ptr<Directory> directory_over(std::shared_ptr<KeyValueStore> group,
                                                        std::shared_ptr<KeyValueStore> job,
                                                        std::string_view secret = {});

}  // namespace gtopk
