// Test support: a directory without a key-value store, for ranks that are threads: it
// gathers a group's cards like a fence does, and treats them as opaque bytes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "gtopk/directory.hpp"
#include "gtopk/error.hpp"

namespace gtopk::test {

class TrialDirectory final : public Directory {
 public:
  void publish(std::string_view name, std::string_view address) override {
    const std::lock_guard lock(mutex_);
    addresses_.insert_or_assign(std::string(name), std::string(address));
    changed_.notify_all();
  }

  std::optional<std::string> lookup(std::string_view name,
                                    std::chrono::nanoseconds at_most) override {
    std::unique_lock lock(mutex_);
    const auto there = [&] { return addresses_.contains(name); };
    if (!changed_.wait_for(lock, at_most, there)) {
      return std::nullopt;
    }
    return addresses_.find(name)->second;
  }

  std::vector<std::string> meet(const Presence& self, std::chrono::nanoseconds at_most) override {
    std::unique_lock lock(mutex_);
    std::shared_ptr<Gathering>& open = open_[self.group];
    if (!open) {
      open = std::make_shared<Gathering>();
    }
    const std::shared_ptr<Gathering> mine = open;
    mine->cards[self.rank] = self.card;
    if (mine->cards.size() == self.size) {
      end(self.group, *mine);
    } else if (!changed_.wait_for(lock, at_most, [&] { return mine->ended; })) {
      std::vector<std::uint32_t> missing;
      for (std::uint32_t rank = 0; rank < self.size; ++rank) {
        if (!mine->cards.contains(rank)) {
          missing.push_back(rank);
        }
      }
      mine->failure =
          Error(ErrorKind::kBootstrap,
                fmt::format("group '{}': rank {} of {} has not arrived in time ({:g} s)",
                            self.group, fmt::join(missing, ", "), self.size,
                            std::chrono::duration<double>(at_most).count()));
      end(self.group, *mine);
    }
    if (mine->failure) {
      throw Error(*mine->failure);
    }
    std::vector<std::string> cards;
    for (const auto& [rank, card] : mine->cards) {
      cards.push_back(card);
    }
    return cards;
  }

  /// Addresses, and unfinished meetings.
  [[nodiscard]] std::size_t entries() {
    const std::lock_guard lock(mutex_);
    return addresses_.size() + open_.size();
  }

 private:
  /// One meeting of one group.
  struct Gathering {
    std::map<std::uint32_t, std::string> cards;  ///< by rank
    std::optional<Error> failure;
    bool ended = false;
  };

  void end(const std::string& group, Gathering& gathering) {
    gathering.ended = true;
    open_.erase(group);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> addresses_;
  std::map<std::string, std::shared_ptr<Gathering>, std::less<>> open_;  ///< by group
};

}  // namespace gtopk::test
