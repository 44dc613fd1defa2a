#include "tests/support/memory_store.hpp"

namespace gtopk::support {

void MemoryStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  values_.insert_or_assign(std::string(key), std::string(value));
  changed_.notify_all();
}

std::optional<std::string> MemoryStore::find(std::string_view key,
                                             std::chrono::nanoseconds at_most) {
  std::unique_lock lock(mutex_);
  const auto there = [&] { return values_.contains(key); };
  if (!changed_.wait_for(lock, at_most, there)) {
    return std::nullopt;
  }
  return values_.find(key)->second;
}

std::int64_t MemoryStore::add(std::string_view key, std::int64_t delta) {
  const std::lock_guard lock(mutex_);
  return counters_[std::string(key)] += delta;
}

void MemoryStore::remove(std::string_view key) {
  const std::lock_guard lock(mutex_);
  values_.erase(std::string(key));
  counters_.erase(std::string(key));
}

std::size_t MemoryStore::keys() {
  const std::lock_guard lock(mutex_);
  return values_.size() + counters_.size();
}

}  // namespace gtopk::support
