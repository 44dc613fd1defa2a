// Bootstrap: the seam by which ranks that know nothing of each other exchange their first bytes.
// torch's Store, the plain TCP rendezvous of this room and PMIx are implementations. It knows no
// transport and no torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "transport/base/clock.hpp"

namespace gtopk::bootstrap {

using transport::Duration;

/// A small shared dictionary. Any thread may call; one that waits may keep the others waiting.
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
  [[nodiscard]] virtual std::optional<std::string> find(std::string_view key, Duration at_most) = 0;

  /// As find(); throws Error{kBootstrap} that names the key and the seconds where that gives
  /// nothing.
  [[nodiscard]] std::string get(std::string_view key, Duration at_most);

  /// Adds `delta` to the counter `key` (0 before its first add) and returns the sum. Counters and
  /// values are two dictionaries: get() does not see a counter. Throws Error{kBootstrap}.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;

  /// Forgets the value and the counter `key`, where the store can; a courtesy that fails silently.
  virtual void remove(std::string_view key) = 0;
};

}  // namespace gtopk::bootstrap
