// Public surface: a small shared dictionary of bytes, the least that ranks need to find one
// another. torch's Store and gtopk's own TCP rendezvous are such stores; one of your own is four
// functions, and directory_over() does the rest. It knows no ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "gtopk/directory.hpp"

namespace gtopk {

/// Any thread may call; one that waits may keep the others waiting.
class KeyValueStore {
 public:
  KeyValueStore() = default;
  KeyValueStore(const KeyValueStore&) = delete;
  KeyValueStore& operator=(const KeyValueStore&) = delete;
  KeyValueStore(KeyValueStore&&) = delete;
  KeyValueStore& operator=(KeyValueStore&&) = delete;
  virtual ~KeyValueStore() = default;

  /// Sets `key`, over an earlier value if there is one. Throws Error{kBootstrap}.
  virtual void set(std::string_view key, std::string_view value) = 0;

  /// The value of `key`, waiting until somebody has set it; nothing when `at_most` passes first (0:
  /// does not wait). Throws Error{kBootstrap} when the store fails.
  [[nodiscard]] virtual std::optional<std::string> find(std::string_view key,
                                                        std::chrono::nanoseconds at_most) = 0;

  /// As find(); throws Error{kBootstrap} that names the key and the seconds where that gives
  /// nothing.
  [[nodiscard]] std::string get(std::string_view key, std::chrono::nanoseconds at_most);

  /// Adds `delta` to the counter `key` (0 before its first add) and returns the sum. Counters and
  /// values are two dictionaries: get() does not see a counter. Throws Error{kBootstrap}.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;

  /// Forgets the value and the counter `key`, where the store can; a courtesy that fails silently.
  virtual void remove(std::string_view key) = 0;
};

/// A directory in a store that all ranks of the job share; groups are told apart by their names.
/// The store may hold what former lives of the ranks left there. What meet() throws is the same on
/// every rank that is there, and names the ranks that are not.
[[nodiscard]] std::shared_ptr<Directory> directory_over(std::shared_ptr<KeyValueStore> job);

/// The same, for a group that has a store of its own, as torch gives every group one.
[[nodiscard]] std::shared_ptr<Directory> directory_over(std::shared_ptr<KeyValueStore> group,
                                                        std::shared_ptr<KeyValueStore> job);

}  // namespace gtopk
