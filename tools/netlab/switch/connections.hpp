// The TCP connections that a switch remembers, like NATs and stateful firewalls. This is pure; the
// time is an argument.
#pragma once

#include <cstddef>
#include <map>
#include <span>

#include "delay_line.hpp"
#include "ethernet.hpp"

namespace netlab {

class Connections {
 public:
  /// A connection that is silent for longer than `idle` is forgotten. With 0, none is.
  explicit Connections(Time idle) : idle_(idle) {}

  /// Whether a frame that arrives now passes. A segment passes if its connection is remembered, or
  /// if it opens one; frames other than TCP pass. No one is notified of a segment that does not
  /// pass.
  [[nodiscard]] bool pass(Time now, std::span<const std::byte> frame) {
    const auto segment = idle_ == Time{0} ? std::nullopt : tcp_segment(frame);
    if (!segment) {
      return true;
    }
    const auto known = last_.find(segment->connection);
    const bool remembered = known != last_.end() && now - known->second <= idle_;
    if (!remembered && !segment->opens) {
      return false;
    }
    last_.insert_or_assign(segment->connection, now);
    return true;
  }

 private:
  Time idle_;
  std::map<Connection, Time> last_;
};

}  // namespace netlab
