// Engine: the numbers by which this process identifies its groups in tags. Each process assigns its
// own numbers; other processes learn them when the group meets.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/transport/base/tag.hpp"

namespace gtopk::engine {

class GroupIds {
 public:
  /// Takes a free number. Numbers are assigned cyclically, so that each is reused as late as
  /// possible. Returns nullopt if all are taken.
  [[nodiscard]] std::optional<std::uint32_t> take();
  void give_back(std::uint32_t id) { taken_.reset(id); }
  [[nodiscard]] std::size_t count() const { return taken_.count(); }
  [[nodiscard]] bool ever_taken(std::uint32_t id) const {
    return id < used_.size() && used_.test(id);
  }
  [[nodiscard]] bool taken(std::uint32_t id) const { return id < taken_.size() && taken_.test(id); }

 private:
  std::bitset<transport::kMaxGroups> taken_;
  std::bitset<transport::kMaxGroups> used_;  ///< numbers that were ever assigned
  std::uint32_t next_ = 0;
};

}  // namespace gtopk::engine
