// The TCP connections that a switch remembers, as NATs and stateful
// firewalls do. Pure: the time is an argument.
#pragma once

#include <cstddef>
#include <map>
#include <span>

#include "delay_line.hpp"
#include "ethernet.hpp"

namespace netlab {

class Connections {
 public:
  /// idle: a connection that is silent for longer is forgotten; 0: none is.
  explicit Connections(Time idle) : idle_(idle) {}

  /// Whether a frame that arrives now passes. A segment passes if its connection is remembered, or
  /// if it opens one; what is not TCP passes. Nobody is told about a segment that does not.
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
