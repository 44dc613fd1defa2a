// Transport, inproc: what is in flight between two ports of a fabric, and what a test may do to it.
// It knows neither the scheduler nor the matching.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/transport/base/clock.hpp"
#include "src/transport/base/tag.hpp"

namespace gtopk::transport::inproc {

/// A message as a fault rule sees it, when it is sent. Ranks are the fabric's.
struct Sent {
  std::uint64_t number = 0;  ///< counts every message of the fabric, from 0
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  Tag tag = 0;
  std::size_t bytes = 0;
};

/// What happens to one message beside the fabric's own reordering. By default nothing.
struct Fault {
  bool drop = false;                    ///< never arrives; a rendezvous send stays pending
  bool refuse = false;                  ///< cannot be sent: kPeerFailed, at once or after `delay`
  Duration delay{};                     ///< more of it than the others have
  std::optional<std::size_t> length{};  ///< cut to, or padded with 0xA5 to, this many bytes
  std::optional<std::size_t> flip{};    ///< the byte at this offset is inverted, if there is one
};

/// A message takes one event (eager) or three (rendezvous: announce there, clear back, payload
/// there).
struct Event {
  enum class Stage : std::uint8_t {
    kEager,     ///< the whole message, copied when it was sent
    kAnnounce,  ///< the sender has a message and keeps its bytes until it is matched
    kClear,     ///< back to the sender: a receive is there
    kPayload,   ///< the bytes, copied when the clear arrived
    kRefuse,    ///< back to the sender: it cannot be sent after all
    kEnd,       ///< the source's endpoint is closed or reset; nothing comes from it after this
  };

  Stage stage = Stage::kEager;
  std::uint64_t number = 0;  ///< of the message
  std::uint32_t source = 0;  ///< of this event
  std::uint32_t destination = 0;
  Tag tag = 0;
  std::uint32_t connection = 0;  ///< of the message, of those between the two
  TimePoint ready{};             ///< not before
  std::vector<std::byte> payload;
  Fault fault;
  bool last = false;   ///< kEnd: arrives after everything that the source sent before
  std::string reason;  ///< kEnd
};

}  // namespace gtopk::transport::inproc
