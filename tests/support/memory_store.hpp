// Test support: a store in memory, for ranks that are threads, and one rank's view of it, which can
// count what the rank does and cut it off, as death would. It knows no protocol.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "gtopk/key_value_store.hpp"

namespace gtopk::support {

class MemoryStore final : public KeyValueStore {
 public:
  void set(std::string_view key, std::string_view value) override;
  [[nodiscard]] std::optional<std::string> find(std::string_view key,
                                                std::chrono::nanoseconds at_most) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  void remove(std::string_view key) override;

  /// Values and counters.
  [[nodiscard]] std::size_t keys();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, std::int64_t, std::less<>> counters_;
};

/// Thrown to a rank that is dead. Not an Error, so that no code handles it.
class Killed : public std::exception {};

/// What a rank is about to do.
struct StoreCall {
  enum class Kind : std::uint8_t { kSet, kFind, kAdd, kRemove };
  Kind kind;
  std::string_view key;
};

/// The whole store as one rank sees it. `before` is called, on the rank's thread, before each call,
/// and may throw; cut_off() throws Killed in a call that waits.
class RankStore final : public KeyValueStore {
 public:
  using Before = std::function<void(const StoreCall&)>;
  RankStore(std::shared_ptr<KeyValueStore> whole, Before before)
      : whole_(std::move(whole)), before_(std::move(before)) {}

  void set(std::string_view key, std::string_view value) override {
    before_({StoreCall::Kind::kSet, key});
    whole_->set(key, value);
  }
  [[nodiscard]] std::optional<std::string> find(std::string_view key,
                                                std::chrono::nanoseconds at_most) override {
    before_({StoreCall::Kind::kFind, key});
    const auto end = std::chrono::steady_clock::now() + at_most;
    for (;;) {
      const auto rest = end - std::chrono::steady_clock::now();
      auto value = whole_->find(key, std::clamp<std::chrono::nanoseconds>(rest, {}, kPart));
      if (cut_off_) {
        throw Killed();
      }
      if (value || rest <= kPart) {
        return value;
      }
    }
  }
  void cut_off() { cut_off_ = true; }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    before_({StoreCall::Kind::kAdd, key});
    return whole_->add(key, delta);
  }
  void remove(std::string_view key) override {
    before_({StoreCall::Kind::kRemove, key});
    whole_->remove(key);
  }

 private:
  static constexpr std::chrono::milliseconds kPart{2};

  std::shared_ptr<KeyValueStore> whole_;
  Before before_;
  std::atomic<bool> cut_off_{false};
};

}  // namespace gtopk::support
