// Bootstrap: one group's keys in a store shared by several groups.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "gtopk/key_value_store.hpp"

namespace gtopk::bootstrap {

/// A view of another store, which must outlive it.
class PrefixStore final : public KeyValueStore {
 public:
  PrefixStore(KeyValueStore& whole, std::string prefix)
      : whole_(whole), prefix_(std::move(prefix)) {}

  void set(std::string_view key, std::string_view value) override { whole_.set(own(key), value); }
  [[nodiscard]] std::optional<std::string> find(std::string_view key,
                                                std::chrono::nanoseconds at_most) override {
    return whole_.find(own(key), at_most);
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return whole_.add(own(key), delta);
  }
  void remove(std::string_view key) override { whole_.remove(own(key)); }

 private:
  [[nodiscard]] std::string own(std::string_view key) const { return prefix_ + std::string(key); }

  KeyValueStore& whole_;
  std::string prefix_;
};

}  // namespace gtopk::bootstrap
